"""Attempts to reach somebody over a socket."""

from __future__ import annotations

import socket

from harness_worker.sandbox.attempts.common import attempt, env, port


def _connect(family: int, address: object) -> object:
    with socket.socket(family) as sock:
        sock.settimeout(1.0)
        sock.connect(address)  # type: ignore[arg-type]
        return "connected"


@attempt
def tcp_to_host() -> object:
    return _connect(socket.AF_INET, ("127.0.0.1", port()))


@attempt
def tcp6_to_host() -> object:
    return _connect(socket.AF_INET6, ("::1", port()))


@attempt
def udp_to_host() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1.0)
        sock.connect(("127.0.0.1", port()))
        sock.send(b"ping")
        return sock.recv(16)


@attempt
def raw_socket() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 1):
        return "raw socket"


@attempt
def packet_socket() -> object:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        return "packet socket"


@attempt
def netlink() -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW):
        return "netlink"


@attempt
def vsock() -> object:
    with socket.socket(socket.AF_VSOCK):
        return "vsock reaches the hypervisor"


@attempt
def unix_socket() -> object:
    return _connect(socket.AF_UNIX, env("SOCK"))


@attempt
def abstract_socket() -> object:
    return _connect(socket.AF_UNIX, "\0" + env("ABSTRACT"))


@attempt
def datagram_pair() -> object:
    # A pair of datagram sockets is connected, and may yet send to any name.
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"ping", env("DGRAM"))
    return "sent"
