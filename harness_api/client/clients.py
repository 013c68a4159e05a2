"""`Client` and `AsyncClient`: the same nouns over two wires."""

from __future__ import annotations

import ssl
from typing import Generic, Self

import httpx

from harness_api.client.approvals import Approvals
from harness_api.client.data import Data
from harness_api.client.effects import Effects
from harness_api.client.http import Http
from harness_api.client.mcp_servers import McpServers
from harness_api.client.memories import Memories
from harness_api.client.models import Models
from harness_api.client.policies import PolicyRules
from harness_api.client.repairs import Repairs
from harness_api.client.resources import (
    Agents,
    Artifacts,
    Audit,
    Health,
    Keys,
    Platforms,
    Sessions,
    Tenants,
    Throttles,
    Workers,
)
from harness_api.client.runs import Runs
from harness_api.client.schedules import Schedules
from harness_api.client.secrets import Secrets
from harness_api.client.skills import Skills
from harness_api.client.surface import Awaiting, Blocking, M, finish
from harness_api.client.target import Target, find_target
from harness_api.client.tools import Egress, Tools
from harness_api.client.webhooks import Webhooks
from harness_api.client.wire import AsyncWire, BlockingWire, Wire


class _Nouns(Generic[M]):
    """What both clients have."""

    def __init__(self, wire: Wire, target: Target, timeout_s: float, retries: int) -> None:
        http = Http(wire, target, timeout_s=timeout_s, retries=retries)
        self.target = target
        self.runs: Runs[M] = Runs(http)
        self.approvals: Approvals[M] = Approvals(http)
        self.effects: Effects[M] = Effects(http)
        self.repairs: Repairs[M] = Repairs(http)
        self.policy: PolicyRules[M] = PolicyRules(http)
        self.agents: Agents[M] = Agents(http)
        self.skills: Skills[M] = Skills(http)
        self.tools: Tools[M] = Tools(http)
        self.models: Models[M] = Models(http)
        self.egress: Egress[M] = Egress(http)
        self.webhooks: Webhooks[M] = Webhooks(http)
        self.sessions: Sessions[M] = Sessions(http)
        self.schedules: Schedules[M] = Schedules(http)
        self.mcp: McpServers[M] = McpServers(http)
        self.memories: Memories[M] = Memories(http)
        self.artifacts: Artifacts[M] = Artifacts(http)
        self.keys: Keys[M] = Keys(http)
        self.secrets: Secrets[M] = Secrets(http)
        self.tenant: Tenants[M] = Tenants(http)
        self.platform: Platforms[M] = Platforms(http)
        self.workers: Workers[M] = Workers(http)
        self.throttles: Throttles[M] = Throttles(http)
        self.data: Data[M] = Data(http)
        self.audit: Audit[M] = Audit(http)
        self.health: Health[M] = Health(http)
        self._wire = wire


def _tls(target: Target) -> ssl.SSLContext | bool:
    """Return whom to trust: nobody where no TLS is spoken, which spares the loading of roots."""
    plain = target.base_url.startswith("http://")
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True


class Client(_Nouns[Blocking]):
    """A blocking client; thread-safe. Use as a context manager, or `close` it.

    Without arguments it finds the server as `find_target` says. `retries` bounds how often a
    request is repeated, which is done only where that is safe.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        target = find_target(base_url, api_key)
        wire = BlockingWire(
            httpx.Client(transport=transport, verify=_tls(target), trust_env=not target.is_loopback)
        )
        super().__init__(wire, target, timeout_s, retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        finish(self._wire.close())


class AsyncClient(_Nouns[Awaiting]):
    """An async client for asyncio. Use with `async with`, or `aclose` it.

    See `Client` for the arguments.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        target = find_target(base_url, api_key)
        wire = AsyncWire(
            httpx.AsyncClient(
                transport=transport, verify=_tls(target), trust_env=not target.is_loopback
            )
        )
        super().__init__(wire, target, timeout_s, retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.close()
