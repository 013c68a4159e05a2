"""The one way out: `Egress` makes the requests of a tenant's tools, and clients for MCP and
webhooks.

A client lives for one exchange (or as long as an MCP session) and belongs to one tenant. That costs
a connection each time, and buys that tenants share none and that a `write` is never sent over a
connection that the server is about to close, which would leave its outcome unknown.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import httpx
from ssrfguard import Resolver

from harness_common.core.host_rules import HostRules
from harness_common.core.ids import encode
from harness_common.settings import Settings
from harness_worker.egress.body import BadBody, Body, read_body
from harness_worker.egress.reachable import MAX_REDIRECTS, Reachable
from harness_worker.egress.transport import Counts, EgressTransport, Interceptor, Refused, tls

RulesOf = Callable[[UUID], Awaitable[HostRules]]
RULES_KEPT_S: Final = 1.0
"""How long a worker may go by rules that were changed meanwhile."""
CONNECT_S: Final = 5.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEPT_TENANTS: Final = 2_000


class TooManyRedirects(Exception):
    """A chain of redirects did not end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    timeout_s: float = 10.0
    """Of each of: connecting (5 s at most), sending, each wait for bytes. The caller bounds all."""
    max_bytes: int = 2 * 1024 * 1024
    follow: bool = False
    """Follow redirects (GET and HEAD only); headers stay behind when the origin changes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `broken` says that the body ended early or could not be read."""

    url: str
    status: int
    reason: str
    headers: httpx.Headers
    charset: str | None
    body: bytes
    truncated: bool = False
    broken: str | None = None

    @property
    def content_type(self) -> str:
        """Return the media type without its parameters."""
        named: str = self.headers.get("content-type", "")
        return named.partition(";")[0].strip().lower()


async def no_rules(tenant_id: UUID) -> HostRules:
    """Let every public host pass."""
    del tenant_id
    return HostRules()


class Egress:
    """Outgoing HTTP of one worker process."""

    def __init__(
        self,
        settings: Settings,
        rules: RulesOf = no_rules,
        *,
        interceptor: Interceptor | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        config = settings.egress
        loopback = ("127.0.0.0/8", "::1/128", "localhost") if config.loopback else ()
        self._allow = (*settings.tool.http_allow, *loopback)
        self._rules_of, self._resolver = rules, resolver
        named = config.interceptor
        self._interceptor = interceptor or (load_interceptor(named) if named else None)
        self._reachable: dict[HostRules, Reachable] = {}
        self._known: dict[UUID, tuple[float, HostRules]] = {}
        self.counts = Counts()

    async def transport(self, tenant_id: UUID) -> EgressTransport:
        """Make a transport of the tenant's own, for a client that is used more than once."""
        rules = await self._rules(tenant_id)
        if not tls.cache_info().currsize:
            await asyncio.to_thread(tls)  # nobody else waits while certificates are loaded
        return EgressTransport(
            encode("tenant", tenant_id),
            self._reach(rules),
            rules,
            interceptor=self._interceptor,
            resolver=self._resolver,
            counts=self.counts,
        )

    async def client(self, tenant_id: UUID, **options: Any) -> httpx.AsyncClient:
        """Make an httpx client of the tenant's own; `options` are those of `httpx.AsyncClient`.

        Redirects it follows are checked hop by hop. It raises `Refused` for what may not leave.
        """
        transport = await self.transport(tenant_id)
        options = {"timeout": httpx.Timeout(10.0, connect=CONNECT_S), **options}
        return httpx.AsyncClient(transport=transport, trust_env=False, **options)

    async def send(self, tenant_id: UUID, ask: Ask) -> Answer:
        """Make a request and read its answer, whatever its status.

        Raises `Refused` and `TooManyRedirects` (nothing happened), and `httpx.HTTPError`:
        of those, `NOT_SENT` say that the server never saw the request.
        """
        # Two addresses may be tried: connecting in vain must end before the call does.
        connect_s = min(CONNECT_S, ask.timeout_s / 3)
        timeout = httpx.Timeout(ask.timeout_s, connect=connect_s, pool=connect_s)
        async with await self.client(tenant_id, timeout=timeout, headers=_HEADERS) as client:
            url, headers = ask.url, dict(ask.headers)
            for _ in range(MAX_REDIRECTS + 1):
                found = await _hop(client, ask, url, headers)
                if isinstance(found, Answer):
                    return found
                if not _same_origin(httpx.URL(url), httpx.URL(found)):
                    headers = {}
                url = found
        raise TooManyRedirects(f"more than {MAX_REDIRECTS} redirects")

    async def _rules(self, tenant_id: UUID) -> HostRules:
        now = time.monotonic()
        known = self._known.get(tenant_id)
        if known is not None and known[0] > now:
            return known[1]
        rules = await self._rules_of(tenant_id)
        if len(self._known) >= _KEPT_TENANTS:
            self._known.clear()
        self._known[tenant_id] = (now + RULES_KEPT_S, rules)
        return rules

    def _reach(self, rules: HostRules) -> Reachable:
        found = self._reachable.get(rules)
        if found is None:
            if len(self._reachable) >= _KEPT_TENANTS:
                self._reachable.clear()
            found = self._reachable[rules] = Reachable(self._allow, rules.denied_networks())
        return found


NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which the server has seen nothing of the request."""

_HEADERS: Final = {
    "user-agent": "harness/1",
    "accept": "application/json, text/*;q=0.9, */*;q=0.5",
    "accept-encoding": "gzip, identity",
}


async def _hop(
    client: httpx.AsyncClient, ask: Ask, url: str, headers: Mapping[str, str]
) -> Answer | str:
    """Make one request; return its answer, or the address that it redirects to."""
    try:
        request = client.build_request(ask.method, url, headers=headers, content=ask.content)
    except (httpx.InvalidURL, ValueError) as problem:
        raise Refused(str(problem)[:300]) from problem
    response = await client.send(request, stream=True)
    try:
        location = response.headers.get("location")
        if ask.follow and location and response.status_code in _REDIRECTS:
            return str(response.url.join(location))
        body, broken = await _body(response, ask.max_bytes)
    finally:
        await response.aclose()
    return Answer(
        str(response.url), response.status_code, response.reason_phrase[:80], response.headers,
        response.charset_encoding, body.data, body.truncated, broken,
    )  # fmt: skip


async def _body(response: httpx.Response, max_bytes: int) -> tuple[Body, str | None]:
    """Read the body; the status is known by then, so that a failure here is told, not raised."""
    try:
        return await read_body(response, max_bytes), None
    except BadBody as problem:
        return Body(b"", truncated=False), str(problem)
    except httpx.HTTPError as problem:
        return Body(b"", truncated=False), f"broke off ({type(problem).__name__})"


def _same_origin(a: httpx.URL, b: httpx.URL) -> bool:
    ports = {"http": 80, "https": 443}
    return (a.scheme, a.host, a.port or ports.get(a.scheme)) == (
        b.scheme,
        b.host,
        b.port or ports.get(b.scheme),
    )


def load_interceptor(text: str) -> Interceptor:
    """Import `module:function`; raises `ValueError` when it is not there."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ValueError(
            f"HARNESS_EGRESS__INTERCEPTOR is {text!r}, and {problem}; write module:function"
        ) from problem
    interceptor: Interceptor = found
    return interceptor
