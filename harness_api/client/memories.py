"""What agents remember between runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from harness_api.client.http import Call, given
from harness_api.client.paths import id_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types.memories import Forgotten, FoundMemories, Memory

_PATH = "/v1/memories"


def _path(memory_id: str) -> str:
    return id_path(f"{_PATH}/{{}}", "memory", memory_id)


class Memories(Resource[M]):
    """`client.memories`."""

    @flow
    async def list(
        self,
        limit: int | None = None,
        namespace: str | None = None,
        user_id: str | None = None,
        shared: bool | None = None,
    ) -> AsyncGenerator[Memory, None]:
        """Yield facts, newest first."""
        wanted = given(namespace=namespace, user_id=user_id, shared=shared)
        async for one in self._http.pages(_PATH, Memory, limit, **wanted):
            yield one

    @operation
    async def search(
        self, namespace: str, query: str, user_id: str | None = None, limit: int = 10
    ) -> FoundMemories:
        """Find facts by words and by meaning, the best first."""
        body = given(namespace=namespace, query=query, user_id=user_id, limit=limit)
        call = Call("POST", f"{_PATH}/search", body=body, repeatable=True)
        return await self._http.fetch(call, FoundMemories)

    @operation
    async def save(
        self,
        namespace: str,
        text: str,
        user_id: str | None = None,
        *,
        kind: str = "fact",
        shared: bool = False,
        expires_days: int | None = None,
    ) -> Memory:
        """Keep a fact by hand; one that is known is only confirmed."""
        body = given(
            namespace=namespace, text=text, user_id=user_id, kind=kind, shared=shared or None,
            expires_days=expires_days,
        )  # fmt: skip
        return await self._http.fetch(Call("POST", _PATH, body=body), Memory)

    @operation
    async def get(self, memory_id: str) -> Memory:
        """Read a fact."""
        return await self._http.fetch(Call("GET", _path(memory_id)), Memory)

    @operation
    async def forget(self, memory_id: str) -> None:
        """Delete a fact for good."""
        await self._http.send(Call("DELETE", _path(memory_id)))

    @operation
    async def forget_all(
        self,
        namespace: str | None = None,
        user_id: str | None = None,
        query: str | None = None,
        *,
        shared: bool | None = None,
        dry_run: bool = False,
    ) -> Forgotten:
        """Delete facts for good: of a user, of a namespace, or with all words of a query."""
        body = given(
            namespace=namespace, user_id=user_id, query=query, shared=shared, dry_run=dry_run
        )
        return await self._http.fetch(Call("POST", f"{_PATH}/forget", body=body), Forgotten)
