"""Which addresses outgoing HTTP may reach: public ones, and what the operator lists.

`ssrfguard` resolves once, checks every address and connects to the checked one; here is what it is
told. The address table is stricter than its default, and a list entry widens it for that host or
network alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from ssrfguard import DEFAULT_DENIED, AddressTable, Block, Policy, Reach

MAX_REDIRECTS = 5
MAX_URL_CHARS = 4_096
_PUBLIC_PORTS = frozenset({80, 443, 8080, 8443})
_ANY_PORT = frozenset(range(1, 65_536))

Network = IPv4Network | IPv6Network

_NEVER = {
    "64:ff9b::/96": "IPv4-IPv6 translation",
    "2002::/16": "6to4",
    "2001::/32": "Teredo",
    "::/96": "IPv4-compatible",
    "::ffff:0:0/96": "IPv4-mapped",
    "192.0.0.9/32": "IETF protocol assignments",
    "192.0.0.10/32": "IETF protocol assignments",
    "168.63.129.16/32": "Cloud metadata (Azure wire server)",
}
"""Refused here although ssrfguard permits them or judges the address inside: nothing public needs
these forms. The Azure address is public by number and internal by use."""

_PRIVATE = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
)
"""What a host allowed by name may resolve to, without the metadata services among them."""
_METADATA = (ip_network("100.100.100.200/32"), ip_network("fd00:ec2::254/128"))

_ENDS_IN_NUMBER = re.compile(r"(^|\.)(0x[0-9a-f]*|[0-9]+)\.?$", re.IGNORECASE)
"""WHATWG URL, "ends in a number": such a host is an IPv4 address in some spelling, never a name."""


class Reachable:
    """The policies of one allow-list; `allow` holds host names and networks of the operator.

    `denied` are networks that a tenant wants to reach by no name; what the operator allows of them
    stays reachable by name.
    """

    def __init__(self, allow: Iterable[str] = (), denied: Iterable[Network] = ()) -> None:
        networks, names = _split_allow(allow)
        self._networks = networks
        self._names = names
        self._denied = tuple(denied)
        self._public = _policy(_PUBLIC_PORTS, networks, self._denied)
        self._listed = _policy(_ANY_PORT, networks, self._denied)
        # A listed network is the operator's word, so what it holds is not cut out again.
        private = [part for net in map(ip_network, _PRIVATE) for part in _without_metadata(net)]
        self._named = _policy(_ANY_PORT, (*networks, *private), self._denied)

    def policy_for(self, url: str) -> Policy:
        """Return the policy that governs `url`, which it has passed as far as the URL itself goes.

        Raises `ValueError` or `ssrfguard.SSRFGuardError` when `url` may not be fetched as written.
        """
        policy = self._policy_for_host(host_of(url))
        policy.check_url(url)
        return policy

    def _policy_for_host(self, host: str) -> Policy:
        if host in self._names:
            return self._named
        try:
            address = ip_address(host)
        except ValueError:
            if _ENDS_IN_NUMBER.search(host):
                raise ValueError(f"the host {host!r} is an encoded address") from None
            return self._public
        listed = any(address.version == net.version and address in net for net in self._networks)
        return self._listed if listed else self._public


def _split_allow(allow: Iterable[str]) -> tuple[tuple[Network, ...], frozenset[str]]:
    networks: list[Network] = []
    names: set[str] = set()
    for entry in allow:
        try:
            networks.append(ip_network(entry.strip(), strict=False))
        except ValueError:
            names.add(entry.strip().rstrip(".").lower())
    return tuple(networks), frozenset(names)


def _policy(
    ports: frozenset[int], networks: Iterable[Network], denied: tuple[Network, ...]
) -> Policy:
    return Policy(
        denied_networks=_table(denied),
        allowed_networks=tuple(networks),
        allowed_ports=ports,
        max_redirects=MAX_REDIRECTS,
        max_url_length=MAX_URL_CHARS,
        max_connection_attempts=2,
    )


def _without_metadata(net: Network) -> list[Network]:
    """Cut the metadata services out of a private network: an allowed network beats the table."""
    for hole in _METADATA:
        if isinstance(net, IPv4Network) and isinstance(hole, IPv4Network) and hole.subnet_of(net):
            return list(net.address_exclude(hole))
        if isinstance(net, IPv6Network) and isinstance(hole, IPv6Network) and hole.subnet_of(net):
            return list(net.address_exclude(hole))
    return [net]


@lru_cache(maxsize=512)
def _table(denied: tuple[Network, ...] = ()) -> AddressTable:
    """Build the address table: ssrfguard's, with everything of `_NEVER` denied outright."""
    never = {ip_network(cidr): name for cidr, name in _NEVER.items()}
    never |= dict.fromkeys(denied, "the tenant's deny-list")
    kept = [
        replace(block, reach=Reach.DENIED) if block.network in never else block
        for block in DEFAULT_DENIED.blocks
    ]
    known = {block.network for block in kept}
    added = [
        Block(network=net, name=name, rfc="Harness", reach=Reach.DENIED)
        for net, name in never.items()
        if net not in known
    ]
    return AddressTable((*kept, *added))


def host_of(url: str) -> str:
    """Return the host as `Policy.check_url` and httpx will see it; raises `ValueError` for a
    malformed URL.
    """
    if "\\" in url:
        raise ValueError("it has a backslash, which programs read in different ways")
    host = (urlsplit(url).hostname or "").rstrip(".")
    if "%" in host:
        raise ValueError("its host has a percent sign")
    return host if host.isascii() else host.encode("idna").decode("ascii").lower()
