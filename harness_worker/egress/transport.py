"""The httpx transport that every outgoing request passes, each hop of a redirect included.

Order: the tenant's host rules, the operator's address policy, the interceptor's headers, then the
request through `ssrfguard`, which resolves once, checks every address and connects to the checked
one. Nothing is shared between two transports, so that tenants share no connection.
"""

from __future__ import annotations

import inspect
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache

import httpx
import structlog
from ssrfguard import Policy, Resolver, SSRFGuardError
from ssrfguard.httpx import AsyncSafeTransport

from harness_common.core.host_rules import HostRules
from harness_worker.egress.reachable import Reachable, host_of

log = structlog.get_logger()


class Refused(Exception):
    """The request may not leave; nothing was sent. Its text says why, without the URL's query."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an interceptor is told of a request: never its headers, query or body."""

    tenant_id: str
    method: str
    scheme: str
    host: str
    port: int | None
    path: str


Interceptor = Callable[[Outgoing], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Returns headers to add, for a service mesh or a gateway; may raise `Refused`."""


@dataclass(slots=True)
class Counts:
    """What left this process, for logs and tests."""

    sent: int = 0
    refused: int = 0
    failed: int = 0


class EgressTransport(httpx.AsyncBaseTransport):
    """Lets pass what the rules allow. Raises `Refused`, and what httpx raises for the rest."""

    def __init__(
        self,
        tenant: str,
        reachable: Reachable,
        rules: HostRules,
        *,
        interceptor: Interceptor | None,
        resolver: Resolver | None,
        counts: Counts,
    ) -> None:
        self._tenant, self._reachable, self._rules = tenant, reachable, rules
        self._interceptor, self._resolver, self._counts = interceptor, resolver, counts
        self._inner: dict[int, AsyncSafeTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Check one hop and make it."""
        begun = time.monotonic()
        outcome: str | int = "failed"
        try:
            transport = self._transport(str(request.url))
            await self._intercept(request)
            response = await transport.handle_async_request(request)
        except (SSRFGuardError, Refused, ValueError, httpx.UnsupportedProtocol) as problem:
            outcome = "refused"
            self._counts.refused += 1
            if isinstance(problem, Refused):
                raise
            raise Refused(str(getattr(problem, "reason", problem))[:300]) from problem
        except BaseException:
            self._counts.failed += 1
            raise
        else:
            outcome = response.status_code
            self._counts.sent += 1
            return response
        finally:
            log.debug(
                "egress.sent" if isinstance(outcome, int) else f"egress.{outcome}",
                tenant_id=self._tenant,
                method=request.method,
                host=request.url.host[:255],
                outcome=outcome,
                duration_ms=round((time.monotonic() - begun) * 1000, 1),
            )

    def _transport(self, url: str) -> AsyncSafeTransport:
        policy = self._reachable.policy_for(url)
        host = host_of(url)
        if (why := self._rules.refusal(host)) is not None:
            raise Refused(f"the host {host!r}: {why}")
        found = self._inner.get(id(policy))
        if found is None:
            found = self._inner[id(policy)] = safe_transport(policy, self._resolver)
        return found

    async def _intercept(self, request: httpx.Request) -> None:
        if self._interceptor is None:
            return
        url = request.url
        about = Outgoing(self._tenant, request.method, url.scheme, url.host, url.port, url.path)
        given = self._interceptor(about)
        headers = await given if inspect.isawaitable(given) else given
        for name, value in headers.items():
            request.headers[name] = value

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._inner.values():
            await transport.aclose()


def safe_transport(policy: Policy, resolver: Resolver | None) -> AsyncSafeTransport:
    """Make the transport of one policy; the environment's proxies and certificates are not read."""
    return AsyncSafeTransport(policy=policy, resolver=resolver, verify=tls(), trust_env=False)


@cache
def tls() -> ssl.SSLContext:
    """Build the TLS context once: loading the certificates takes up to a second."""
    return httpx.create_ssl_context(trust_env=False)
