"""Everything besides runs: agents, sessions, artifacts, keys, the tenant and who serves it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any

from harness_api.client.http import Call, given, parse_page
from harness_api.client.paths import id_path, name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import (
    Agent,
    AgentDiff,
    ApiKey,
    Artifact,
    AuditEntry,
    Encryption,
    Graph,
    NewApiKey,
    Platform,
    Readiness,
    Run,
    Session,
    SessionMessage,
    Tenant,
    Throttle,
    Worker,
    WorkerRun,
)


class Agents(Resource[M]):
    """`client.agents`."""

    @operation
    async def apply(self, name: str, spec: Mapping[str, Any]) -> Agent:
        """Put the definition of an agent; one that equals the newest version changes nothing."""
        body = {"name": name, "spec": dict(spec)}
        return await self._http.fetch(Call("POST", "/v1/agents", body=body, repeatable=True), Agent)

    @operation
    async def get(self, name: str, version: int | None = None) -> Agent:
        """Read a version of an agent, by default the newest."""
        template = "/v1/agents/{}" if version is None else f"/v1/agents/{{}}/versions/{version}"
        return await self._http.fetch(Call("GET", name_path(template, name)), Agent)

    @operation
    async def graph(self, name: str, version: int | None = None) -> Graph:
        """Read the graph of an agent of `kind: graph`, with its picture."""
        path = name_path("/v1/agents/{}/graph", name)
        return await self._http.fetch(Call("GET", path, params=given(version=version)), Graph)

    @flow
    async def list(self, limit: int | None = None) -> AsyncGenerator[Agent, None]:
        """Yield the newest version of each agent."""
        async for agent in self._http.pages("/v1/agents", Agent, limit):
            yield agent

    @flow
    async def versions(self, name: str, limit: int | None = None) -> AsyncGenerator[Agent, None]:
        """Yield the versions of an agent, newest first."""
        path = name_path("/v1/agents/{}/versions", name)
        async for agent in self._http.pages(path, Agent, limit):
            yield agent

    @operation
    async def diff(
        self, name: str, from_version: int | None = None, to_version: int | None = None
    ) -> AgentDiff:
        """Compare two versions, by default the newest with the one before it."""
        params = given(from_version=from_version, to_version=to_version)
        path = name_path("/v1/agents/{}/diff", name)
        return await self._http.fetch(Call("GET", path, params=params), AgentDiff)


class Sessions(Resource[M]):
    """`client.sessions`."""

    @operation
    async def create(
        self,
        title: str | None = None,
        *,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Open a session."""
        body = given(title=title, user_id=user_id, metadata=dict(metadata) if metadata else None)
        return await self._http.fetch(Call("POST", "/v1/sessions", body=body), Session)

    @operation
    async def get(self, session_id: str) -> Session:
        """Read a session."""
        path = id_path("/v1/sessions/{}", "session", session_id)
        return await self._http.fetch(Call("GET", path), Session)

    @flow
    async def list(
        self, *, user_id: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[Session, None]:
        """Yield sessions, newest first."""
        async for session in self._http.pages("/v1/sessions", Session, limit, user_id=user_id):
            yield session

    @operation
    async def close(self, session_id: str) -> Session:
        """Close a session for good; refused while a run of it is going."""
        path = id_path("/v1/sessions/{}/close", "session", session_id)
        return await self._http.fetch(Call("POST", path), Session)

    @operation
    async def cancel(self, session_id: str, reason: str = "") -> tuple[Run, ...]:
        """Ask all runs of a session that are not over to stop; return those that were asked."""
        path = id_path("/v1/sessions/{}/cancel", "session", session_id)
        answer = await self._http.send(Call("POST", path, body={"reason": reason}, repeatable=True))
        return tuple(parse_page(answer, Run)[0])

    @flow
    async def runs(self, session_id: str, limit: int | None = None) -> AsyncGenerator[Run, None]:
        """Yield the runs of a session, newest first."""
        path = id_path("/v1/sessions/{}/runs", "session", session_id)
        async for run in self._http.pages(path, Run, limit):
            yield run

    @flow
    async def messages(
        self, session_id: str, limit: int | None = None
    ) -> AsyncGenerator[SessionMessage, None]:
        """Yield the messages of a session's runs, the newest run's last first."""
        path = id_path("/v1/sessions/{}/messages", "session", session_id)
        async for message in self._http.pages(path, SessionMessage, limit):
            yield message


class Artifacts(Resource[M]):
    """`client.artifacts`; those of one run are `client.runs.artifacts`."""

    @operation
    async def get(self, artifact_id: str) -> Artifact:
        """Read what is known of an artifact."""
        path = id_path("/v1/artifacts/{}", "artifact", artifact_id)
        return await self._http.fetch(Call("GET", path), Artifact)

    @operation
    async def content(self, artifact_id: str) -> bytes:
        """Read the bytes of an artifact."""
        path = id_path("/v1/artifacts/{}/content", "artifact", artifact_id)
        answer = await self._http.send(Call("GET", path, headers={"Accept": "*/*"}))
        return answer.content


class Keys(Resource[M]):
    """`client.keys`."""

    @operation
    async def create(
        self,
        name: str,
        role: str,
        *,
        scopes: Sequence[str] = (),
        expires_at: datetime | None = None,
    ) -> NewApiKey:
        """Make a key. Its secret is in this answer and never again."""
        body = given(
            name=name,
            role=role,
            scopes=[*scopes],
            expires_at=expires_at.isoformat() if expires_at else None,
        )
        return await self._http.fetch(Call("POST", "/v1/api-keys", body=body), NewApiKey)

    @flow
    async def list(self, limit: int | None = None) -> AsyncGenerator[ApiKey, None]:
        """Yield keys, newest first, dead ones included."""
        async for key in self._http.pages("/v1/api-keys", ApiKey, limit):
            yield key

    @operation
    async def revoke(self, key_id: str) -> None:
        """Revoke a key; safe to repeat."""
        path = id_path("/v1/api-keys/{}", "api_key", key_id)
        await self._http.send(Call("DELETE", path, repeatable=True))

    @operation
    async def rotate(self, key_id: str, overlap_s: int | None = None) -> NewApiKey:
        """Make a successor of a key; the old one lives on for `overlap_s` (default: a day)."""
        path = id_path("/v1/api-keys/{}/rotate", "api_key", key_id)
        body = given(overlap_s=overlap_s)
        return await self._http.fetch(Call("POST", path, body=body), NewApiKey)


class Tenants(Resource[M]):
    """`client.tenant`: the tenant of the key."""

    @operation
    async def get(self) -> Tenant:
        """Read the tenant, its limits and what it has going."""
        return await self._http.fetch(Call("GET", "/v1/tenant"), Tenant)

    @operation
    async def set_limits(self, /, **limits: float | None) -> Tenant:
        """Change the limits that are named: `max_running`, `weight`, `starts_per_s`, `steps_per_s`,
        `tokens_per_day`, `cost_usd_per_day`. None takes one off. What runs already goes on.
        """
        call = Call("PATCH", "/v1/tenant/limits", body=limits, repeatable=True)
        return await self._http.fetch(call, Tenant)

    @operation
    async def encryption(self) -> Encryption:
        """Read whether what is stored from now on is encrypted."""
        return await self._http.fetch(Call("GET", "/v1/tenant/encryption"), Encryption)

    @operation
    async def set_encryption(self, on: bool, *, new_key: bool = False) -> Encryption:
        """Encrypt bodies from now on, or store them plainly; with `new_key` under a fresh data
        key.
        """
        body = {"on": on, "new_key": new_key}
        return await self._http.fetch(Call("PUT", "/v1/tenant/encryption", body=body), Encryption)


class Platforms(Resource[M]):
    """`client.platform`: what concerns all tenants; for keys of an operator's tenant."""

    @operation
    async def limits(self) -> Platform:
        """Read the limits over all tenants, and what goes on."""
        return await self._http.fetch(Call("GET", "/v1/platform/limits"), Platform)

    @operation
    async def set_limits(self, /, **limits: float | None) -> Platform:
        """Change the limits that are named, as of a tenant but for `weight`. None takes one off."""
        call = Call("PATCH", "/v1/platform/limits", body=limits, repeatable=True)
        return await self._http.fetch(call, Platform)

    @flow
    async def tenants(self, limit: int | None = None) -> AsyncGenerator[Tenant, None]:
        """Yield all tenants with their limits, newest first."""
        async for tenant in self._http.pages("/v1/platform/tenants", Tenant, limit):
            yield tenant

    @operation
    async def set_tenant_limits(self, tenant_id: str, /, **limits: float | None) -> Tenant:
        """Change the limits of any tenant that are named, as `client.tenant.set_limits` does."""
        path = id_path("/v1/platform/tenants/{}/limits", "tenant", tenant_id)
        return await self._http.fetch(Call("PATCH", path, body=limits, repeatable=True), Tenant)


class Workers(Resource[M]):
    """`client.workers`."""

    @flow
    async def list(self) -> AsyncGenerator[Worker, None]:
        """Yield worker processes, newest first, those that died within the hour included."""
        async for worker in self._http.pages("/v1/workers", Worker):
            yield worker

    @flow
    async def runs(
        self, incarnation: str, limit: int | None = None
    ) -> AsyncGenerator[WorkerRun, None]:
        """Yield the tenant's runs that a process works on now, the longest held first."""
        path = id_path("/v1/workers/{}/runs", "worker", incarnation)
        async for run in self._http.pages(path, WorkerRun, limit):
            yield run


class Throttles(Resource[M]):
    """`client.throttles`."""

    @flow
    async def list(self) -> AsyncGenerator[Throttle, None]:
        """Yield the rate limits of providers that hold runs back now, the longest first."""
        async for throttle in self._http.pages("/v1/throttles", Throttle):
            yield throttle


class Audit(Resource[M]):
    """`client.audit`."""

    @flow
    async def list(
        self,
        limit: int | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[AuditEntry, None]:
        """Yield who changed what, newest first; of one actor, action or target, or of a time."""
        times = {"since": since, "until": until}
        filters = {"actor": actor, "action": action, "target": target}
        filters |= {name: at.isoformat() if at else None for name, at in times.items()}
        async for entry in self._http.pages("/v1/audit", AuditEntry, limit, **filters):
            yield entry


class Health(Resource[M]):
    """`client.health`: needs no key."""

    @operation
    async def ready(self) -> Readiness:
        """Tell whether the server can do its work; raises `ApiError` (503) when it cannot."""
        return await self._http.fetch(Call("GET", "/readyz"), Readiness)
