"""All tools that a step may use: those of this worker, and those that the tenant brought."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harness_common.contracts.tool import ToolSource
from harness_worker.tools.registry import ToolRegistry


class Catalog:
    """The worker's own registry, and the sources of tenants' tools behind it."""

    def __init__(self, local: ToolRegistry, sources: Sequence[ToolSource] = ()) -> None:
        self.local, self._sources = local, tuple(sources)

    async def registry(self, tenant_id: UUID, names: Sequence[str]) -> ToolRegistry:
        """Return a registry in which every one of `names` is, that exists for the tenant.

        A tool of the worker itself goes before a tenant's of the same name.
        """
        missing = [name for name in names if name not in self.local]
        if not missing:
            return self.local
        found = [tool for source in self._sources for tool in await source.find(tenant_id, missing)]
        return self.local.view(n for n in names if n in self.local).with_(found)
