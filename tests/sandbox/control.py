"""The world of the uncaged control: victims such as the self-test has, and no cage around it.

Runs only inside the namespaces that `test_escape.uncaged` makes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

from harness_worker.sandbox.attempts import main as run_attempts

MARK = "control"


def main() -> None:
    """Make the victims and run the list."""
    assert socket.gethostname() == "control", "never outside its own namespaces"
    with open("/etc/shadow", "w") as file:
        file.write("root:*:1:0:::::\n")
    for name in ("secret", "owned"):
        with open(f"/var/tmp/{name}", "w") as file:
            file.write(name)
    stream = socket.socket()
    stream.bind(("127.0.0.1", 0))
    stream.listen()
    port = stream.getsockname()[1]
    six = socket.socket(socket.AF_INET6)
    six.bind(("::1", port))
    six.listen()
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))
    threading.Thread(target=_echo, args=(udp,), daemon=True).start()
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("/var/tmp/stream")
    unix.listen()
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind("/var/tmp/dgram")
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0control")
    abstract.listen()
    wait = [sys.executable, "-I", "-S", "-c", "HX_VICTIM = input()"]
    victims = [subprocess.Popen(wait, stdin=subprocess.PIPE, env={"HX_VICTIM": MARK})]
    victims += [subprocess.Popen(["sleep", "60"]) for _ in range(5)]
    os.environ |= {
        "HX_SECRET": "/var/tmp/secret",
        "HX_OWNED": "/var/tmp/owned",
        "HX_PID": str(victims[0].pid),
        "HX_PORT": str(port),
        "HX_SOCK": "/var/tmp/stream",
        "HX_DGRAM": "/var/tmp/dgram",
        "HX_ABSTRACT": "control",
        "HX_MARK": MARK,
        "HX_IPC": os.readlink("/proc/self/ns/ipc"),
        "APP_SECRET": "s",
    }
    run_attempts([])
    for victim in victims:
        victim.kill()


def _echo(sock: socket.socket) -> None:
    while True:
        data, address = sock.recvfrom(64)
        sock.sendto(data, address)
