"""An HTTP client that reaches public addresses only, and what the operator lists (`reachable`)."""

from __future__ import annotations

from collections.abc import Iterable

import httpx
from ssrfguard import Policy
from ssrfguard.httpx import AsyncSafeTransport

from harness_worker.tools.reachable import Reachable


def guarded_client(allow: Iterable[str]) -> httpx.AsyncClient:
    """Return a client whose every request is judged by its own URL; redirects are not followed."""
    return httpx.AsyncClient(transport=_Guarded(allow), follow_redirects=False, trust_env=False)


class _Guarded(httpx.AsyncBaseTransport):
    """One safe transport for each policy that the URLs ask for: three at most."""

    def __init__(self, allow: Iterable[str]) -> None:
        self._reachable = Reachable(allow)
        self._safe: dict[int, tuple[Policy, AsyncSafeTransport]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        policy = self._reachable.policy_for(str(request.url))
        _, safe = self._safe.setdefault(id(policy), (policy, AsyncSafeTransport(policy=policy)))
        return await safe.handle_async_request(request)

    async def aclose(self) -> None:
        for _, safe in self._safe.values():
            await safe.aclose()
