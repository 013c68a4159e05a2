"""Tools: the tenant's own, which are data, those that workers have, and where requests may go."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from harness_api.client.http import Call, given, parse_page
from harness_api.client.paths import name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Breaker, EgressRules, ImportedTools, Tool
from harness_common.core.errors import Invalid

_PATH = "/v1/tools/{}"
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class Tools(Resource[M]):
    """`client.tools`."""

    @operation
    async def put(self, definition: Mapping[str, Any]) -> Tool:
        """Add a version of a tool; a definition that equals the newest one changes nothing."""
        call = Call("POST", "/v1/tools", body=dict(definition), repeatable=True)
        return await self._http.fetch(call, Tool)

    @operation
    async def get(self, name: str, version: int | None = None) -> Tool:
        """Read a tool, by default the version that counts."""
        template = _PATH if version is None else f"{_PATH}/versions/{version}"
        return await self._http.fetch(Call("GET", name_path(template, name)), Tool)

    @operation
    async def list(self) -> tuple[Tool, ...]:
        """Return all tools by name: the tenant's and those of live workers."""
        return tuple(parse_page(await self._http.send(Call("GET", "/v1/tools")), Tool)[0])

    @flow
    async def versions(self, name: str, limit: int | None = None) -> AsyncGenerator[Tool, None]:
        """Yield the versions of a tenant's tool, newest first, also of a removed one."""
        path = name_path(_PATH + "/versions", name)
        async for tool in self._http.pages(path, Tool, limit):
            yield tool

    @operation
    async def enable(self, name: str) -> Tool:
        """Let a tool be used again. Safe to repeat."""
        path = name_path(_PATH + "/enable", name)
        return await self._http.fetch(Call("POST", path, repeatable=True), Tool)

    @operation
    async def disable(self, name: str) -> Tool:
        """Let every call of a tool be refused. Safe to repeat."""
        path = name_path(_PATH + "/disable", name)
        return await self._http.fetch(Call("POST", path, repeatable=True), Tool)

    @operation
    async def remove(self, name: str) -> None:
        """Take a tool away; its versions can still be read."""
        await self._http.send(Call("DELETE", name_path(_PATH, name)))

    @operation
    async def import_openapi(
        self,
        document: Mapping[str, Any],
        *,
        only: Sequence[str] = (),
        server: str | None = None,
        prefix: str = "",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        effects: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> ImportedTools:
        """Make tools of the operations of an OpenAPI document.

        `only` and `effects` name operations as `GET:/pets` or by their operationId.
        """
        body = given(
            document=dict(document),
            only=list(only),
            server=server,
            prefix=prefix,
            headers=dict(headers or {}),
            query=dict(query or {}),
            effects=dict(effects or {}),
            dry_run=dry_run,
        )
        call = Call("POST", "/v1/tools/import", body=body, repeatable=True)
        return await self._http.fetch(call, ImportedTools)

    @flow
    async def breakers(self) -> AsyncGenerator[Breaker, None]:
        """Yield the tools that failed lately, those that are not called now first."""
        async for breaker in self._http.pages("/v1/tools/breakers", Breaker):
            yield breaker

    @operation
    async def reset_breaker(self, name: str) -> Breaker:
        """Forget the faults of a tool, so that it is called again at once."""
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:64]!r} is no name of a tool", field="tool", value=name[:64])
        return await self._http.fetch(Call("POST", f"/v1/tools/breakers/{name}/reset"), Breaker)


class Egress(Resource[M]):
    """`client.egress`: where the tenant's own requests may go."""

    @operation
    async def get(self) -> EgressRules:
        """Read the rules."""
        return await self._http.fetch(Call("GET", "/v1/egress"), EgressRules)

    @operation
    async def set(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> EgressRules:
        """Replace the rules: hosts, `*.name`, addresses and networks; no `allow` allows all."""
        body = {"allow": list(allow), "deny": list(deny)}
        return await self._http.fetch(
            Call("PUT", "/v1/egress", body=body, repeatable=True), EgressRules
        )
