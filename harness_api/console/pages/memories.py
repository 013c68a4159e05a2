"""Memories: what agents remember between runs, and forgetting one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import memories
from harness_api.routes.ids import MemoryId

router = new_pages("/console/memories")

CanRead = Annotated[Visit, requires_page("memories:read")]
CanWrite = Annotated[Visit, requires_page("memories:write")]
LIMIT = 50


@router.get("")
async def memories_page(
    services: Use,
    visit: CanRead,
    namespace: Annotated[str, Query(max_length=100)] = "",
    user_id: Annotated[str, Query(max_length=200)] = "",
    cursor: IdCursor = None,
) -> Response:
    """List facts, newest first."""
    found = await memories.get_memories(
        services,
        visit.caller,
        namespace=namespace or None,
        user_id=user_id or None,
        limit=LIMIT,
        cursor=cursor,
    )
    return visit.page(
        "memories.html",
        memories=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
        namespace=namespace,
        user_id=user_id,
    )


@router.post("/{memory_id}/forget")
async def forget(memory_id: MemoryId, services: Use, visit: CanWrite) -> Response:
    """Delete a fact for good."""
    await memories.delete_memory(memory_id, services, visit.caller)
    return visit.go("/console/memories", "Forgotten: the next step of every run is without it.")
