"""Which hosts a tenant lets its own requests go to: an allow-list, a deny-list, and what they say.

Used by the API, which checks entries, and by the egress client, which asks about each hop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from harness_common.core.errors import Invalid

Network = IPv4Network | IPv6Network

MAX_ENTRIES: Final = 500
_NAME: Final = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9-]{1,63}")


@dataclass(frozen=True, slots=True)
class HostRules:
    """An empty allow-list lets every host pass; the deny-list goes first.

    An entry is a host name, `*.example.com` (every name below it, not itself), an address or a
    network.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def refusal(self, host: str) -> str | None:
        """Say why `host` (lower case, without brackets) is refused; None when it is not."""
        if _matches(self.deny, host):
            return "the tenant's deny-list names it"
        if self.allow and not _matches(self.allow, host):
            return "it is not on the tenant's allow-list"
        return None

    def denied_networks(self) -> tuple[Network, ...]:
        """Return the networks that no name may lead to either."""
        return tuple(net for entry in self.deny if (net := _network(entry)) is not None)


def read_entries(entries: Iterable[str], field: str) -> tuple[str, ...]:
    """Return entries in their one spelling, sorted; raises `Invalid` that names the bad one."""
    found = {_entry(entry, f"{field}[{at}]") for at, entry in enumerate(entries)}
    if len(found) > MAX_ENTRIES:
        raise Invalid(
            f"{field} has {len(found)} entries; {MAX_ENTRIES} are the most",
            field=field, value=len(found), limit=MAX_ENTRIES,
        )  # fmt: skip
    return tuple(sorted(found))


def _entry(text: str, field: str) -> str:
    plain = text.strip().rstrip(".").lower()
    network = _network(plain)
    if network is not None:
        return str(network) if "/" in plain else str(network.network_address)
    bad = len(plain) > 253 or _NAME.fullmatch(plain) is None or plain.rpartition(".")[2].isdigit()
    if bad:
        raise Invalid(
            f"{field}: {text[:80]!r} is neither a host name, nor *.name, an address or a network. "
            "Write hosts without scheme, port and path, in ASCII: api.example.com.",
            field=field,
            value=text[:80],
        )
    return plain


def _network(text: str) -> Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _matches(entries: tuple[str, ...], host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return any(
            host == entry or (entry.startswith("*.") and host.endswith(entry[1:]))
            for entry in entries
        )
    nets = [net for entry in entries if (net := _network(entry)) is not None]
    return any(address.version == net.version and address in net for net in nets)
