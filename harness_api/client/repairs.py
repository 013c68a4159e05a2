"""`client.repairs`: how often answers had to be repaired."""

from __future__ import annotations

from harness_api.client.http import Call
from harness_api.client.surface import M, Resource, operation
from harness_api.client.types import RepairStats


class Repairs(Resource[M]):
    """`client.repairs`."""

    @operation
    async def stats(self, month: str | None = None, *, agent: str | None = None) -> RepairStats:
        """Count the repairs of a month (`2026-11`, UTC; by default the current one)."""
        query = {k: v for k, v in {"month": month, "agent": agent}.items() if v is not None}
        return await self._http.fetch(Call("GET", "/v1/repairs/stats", params=query), RepairStats)
