"""Policies of tool calls, and what they decided."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from harness_api.client.effects import call_path
from harness_api.client.http import Call, given
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import CallDecision, Decision, PolicyVersion


class PolicyRules(Resource[M]):
    """`client.policy`."""

    @operation
    async def set(self, source: str, agent: str | None = None) -> PolicyVersion:
        """Set the rules (YAML) of the tenant, or of one agent; the same rules change nothing."""
        body = given(source=source, agent=agent)
        return await self._http.fetch(
            Call("POST", "/v1/policies", body=body, repeatable=True), PolicyVersion
        )

    @operation
    async def get(self, agent: str | None = None, version: int | None = None) -> PolicyVersion:
        """Read a version of the rules, by default the newest; version 0 is the absence of any."""
        path = "/v1/policies" if version is None else f"/v1/policies/versions/{version}"
        return await self._http.fetch(Call("GET", path, params=given(agent=agent)), PolicyVersion)

    @flow
    async def versions(
        self, agent: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[PolicyVersion, None]:
        """Yield the versions of the rules, newest first."""
        path = "/v1/policies/versions"
        async for one in self._http.pages(path, PolicyVersion, limit, agent=agent):
            yield one

    @operation
    async def test(
        self,
        tool: Mapping[str, Any],
        arguments: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Decision:
        """Say what would be decided about a made-up call.

        `tool` has `name` and what it declares (`effect`, `permission_tags`, `outbound`, …); `about`
        is `agent`, `role`, `tainted`, `read_private`, `used_outbound`, `budget_left_usd`, and
        `source` or `agent_source` for rules to try instead of the newest.
        """
        body = {"tool": dict(tool), "arguments": dict(arguments or {}), **given(**(about or {}))}
        call = Call("POST", "/v1/policies/test", body=body, repeatable=True)
        return await self._http.fetch(call, Decision)

    @operation
    async def explain(self, run_id: str, call: str) -> CallDecision:
        """Explain the decision about one call (`step.index`) of a run."""
        return await self._http.fetch(Call("GET", call_path(run_id, call, "/policy")), CallDecision)
