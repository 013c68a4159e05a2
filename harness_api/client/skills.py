"""Skills: how some kind of work is done, as versions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from harness_api.client.http import Call
from harness_api.client.paths import name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types.skills import Skill

_PATH = "/v1/skills"


class Skills(Resource[M]):
    """`client.skills`."""

    @operation
    async def apply(self, name: str, spec: Mapping[str, Any]) -> Skill:
        """Put the definition of a skill; one that equals the newest version changes nothing."""
        body = {"name": name, "spec": dict(spec)}
        return await self._http.fetch(Call("POST", _PATH, body=body, repeatable=True), Skill)

    @operation
    async def get(self, name: str, version: int | None = None) -> Skill:
        """Read a version of a skill, by default the newest."""
        template = f"{_PATH}/{{}}" if version is None else f"{_PATH}/{{}}/versions/{version}"
        return await self._http.fetch(Call("GET", name_path(template, name)), Skill)

    @flow
    async def list(self, limit: int | None = None) -> AsyncGenerator[Skill, None]:
        """Yield the newest version of each skill."""
        async for skill in self._http.pages(_PATH, Skill, limit):
            yield skill

    @flow
    async def versions(self, name: str, limit: int | None = None) -> AsyncGenerator[Skill, None]:
        """Yield the versions of a skill, newest first."""
        path = name_path(f"{_PATH}/{{}}/versions", name)
        async for skill in self._http.pages(path, Skill, limit):
            yield skill
