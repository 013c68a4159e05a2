"""Where Redis is: one server, or a primary that Sentinel names.

`redis://…` and `rediss://…` are one server. With Sentinel all of its addresses are written down:
`sentinel://[user:password@]host[:port],host[:port]/PRIMARY[/DB][?sentinel_password=…]`. User and
password are those of the primary. Used by everything that connects; imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from redis import Redis
from redis.sentinel import Sentinel

SCHEME: Final = "sentinel://"
FORM: Final = "sentinel://[user:password@]host:26379,host:26379/PRIMARY[/DB]"
_PORT: Final = 26379


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """What a `sentinel://` URL says."""

    nodes: tuple[tuple[str, int], ...]
    primary: str
    """The name under which Sentinel watches it."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_password: str | None = None

    @property
    def login(self) -> dict[str, Any]:
        """What a connection to the primary logs in with."""
        return {"db": self.db, "username": self.username, "password": self.password}

    @property
    def sentinel_login(self) -> dict[str, Any]:
        """What a connection to a Sentinel logs in with."""
        return {"password": self.sentinel_password} if self.sentinel_password else {}

    def for_people(self) -> str:
        """Write it without its passwords."""
        return f"{SCHEME}{','.join(self._hosts)}/{self.primary}/{self.db}"

    def for_kombu(self) -> str:
        """Write it as kombu reads it: a URL for each Sentinel, the name of the primary apart."""
        login = ""
        if self.password is not None:
            login = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return ";".join(f"{SCHEME}{login}{host}/{self.db}" for host in self._hosts)

    @property
    def _hosts(self) -> list[str]:
        """Each with its port, and an IPv6 address in brackets."""
        return [f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.nodes]


def is_sentinel(url: str) -> bool:
    """Tell whether a URL names Sentinels."""
    return url.startswith(SCHEME)


def parse_sentinel(url: str) -> SentinelUrl:
    """Read a `sentinel://` URL; raises `ValueError` that shows no password."""
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    username, colon, password = login.partition(":")
    nodes = tuple(_node(part) for part in hosts.split(",") if part)
    primary, _, db = parts.path.strip("/").partition("/")
    if not nodes or not primary:
        raise ValueError(f"a URL of Sentinel is written {FORM}")
    if db and not db.isdigit():
        raise ValueError(f"the database in a URL of Sentinel is a number: {FORM}")
    query = parse_qs(parts.query)
    if unknown := set(query) - {"sentinel_password"}:
        raise ValueError(f"a URL of Sentinel knows no {', '.join(sorted(unknown))}: {FORM}")
    return SentinelUrl(
        nodes,
        unquote(primary),
        int(db or 0),
        unquote(username) or None,
        unquote(password) if colon else None,
        query.get("sentinel_password", [None])[0],
    )


def _node(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), _PORT
    if not port.isdigit():
        raise ValueError(f"the port of a Sentinel is a number: {FORM}")
    return host.strip("[]"), int(port)


def sync_client(url: str, *, timeout_s: float) -> Redis:
    """Build a plain client for one question: a supervisor's or a check's."""
    bounds: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    if not is_sentinel(url):
        client: Redis = Redis.from_url(url, **bounds)
        return client
    found = parse_sentinel(url)
    untyped: Any = Sentinel
    sentinel = untyped(
        list(found.nodes), sentinel_kwargs={**bounds, **found.sentinel_login}, **bounds
    )
    primary: Redis = sentinel.master_for(found.primary, **found.login)
    return primary
