"""What is kept, for how long, and taking it out or away."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from harness_api.client.http import Call, given
from harness_api.client.paths import id_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types.retention import Erasure, ErasurePreview, Retention, Storage


class Data(Resource[M]):
    """`client.data`."""

    @operation
    async def retention(self) -> Retention:
        """Read how long things are kept after the end of their run."""
        return await self._http.fetch(Call("GET", "/v1/tenant/retention"), Retention)

    @operation
    async def set_retention(self, /, **days: int | None) -> Retention:
        """Change the ages that are named: `events_days`, `checkpoints_days`, `artifacts_days`,
        `runs_days`. None goes back to the settings.
        """
        call = Call("PATCH", "/v1/tenant/retention", body=days, repeatable=True)
        return await self._http.fetch(call, Retention)

    @flow
    async def export(
        self, user_id: str | None = None, *, content: bool = True
    ) -> AsyncGenerator[bytes, None]:
        """Yield an export of the tenant, or of one user, in pieces (see `client.export`)."""
        params = given(user_id=user_id, content=None if content else "false")
        async with self._http.open(Call("GET", "/v1/export", params=params)) as opened:
            async for piece in opened.chunks():
                yield piece

    @operation
    async def preview_erasure(
        self, user_id: str | None = None, *, tenant_id: str | None = None
    ) -> ErasurePreview:
        """Count what an erasure of a user, or (for an operator) of a tenant, would delete."""
        path, body = _target(user_id, tenant_id)
        call = Call("POST", f"{path}/preview", body=body, repeatable=True)
        return await self._http.fetch(call, ErasurePreview)

    @operation
    async def erase(self, user_id: str | None = None, *, tenant_id: str | None = None) -> Erasure:
        """Erase all that there is of a user, or (for an operator) of a tenant. Safe to repeat."""
        path, body = _target(user_id, tenant_id)
        return await self._http.fetch(Call("POST", path, body=body, repeatable=True), Erasure)

    @operation
    async def erasure(self, erasure_id: str) -> Erasure:
        """Read how far an erasure is."""
        path = id_path("/v1/erasures/{}", "erasure", erasure_id)
        return await self._http.fetch(Call("GET", path), Erasure)

    @flow
    async def erasures(self, limit: int | None = None) -> AsyncGenerator[Erasure, None]:
        """Yield erasures, newest first."""
        async for one in self._http.pages("/v1/erasures", Erasure, limit):
            yield one

    @operation
    async def storage(self) -> Storage:
        """Read what is stored; for keys of an operator's tenant."""
        return await self._http.fetch(Call("GET", "/v1/storage"), Storage)


def _target(user_id: str | None, tenant_id: str | None) -> tuple[str, dict[str, str]]:
    if (user_id is None) == (tenant_id is None):
        raise ValueError("say either a user or a tenant")
    if tenant_id is not None:
        return "/v1/platform/erasures", {"tenant_id": tenant_id}
    assert user_id is not None
    return "/v1/erasures", {"user_id": user_id}
