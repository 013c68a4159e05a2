"""Memories: what agents remember between runs, for people to see, correct and delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import MemoryId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.memories import (
    ForgottenView,
    FoundView,
    MemoryForget,
    MemorySave,
    MemorySearch,
    MemorySearchView,
    MemoryView,
)
from harness_common.contracts.memory import Namespace, Remembered
from harness_common.core.ids import encode
from harness_common.store import memories, memory_admin
from harness_common.store.connection import Row
from harness_common.store.memories import NewFact, Whose
from harness_common.store.memory_admin import MemoryFilter

router = new_router("/v1/memories", "memories")

CanRead = Annotated[Caller, requires("memories:read")]
CanWrite = Annotated[Caller, requires("memories:write")]


def memory_view(row: Row) -> MemoryView:
    """Show a fact."""
    return MemoryView(
        id=encode("memory", row["id"]),
        namespace=row["scope"],
        user_id=row["user_id"],
        shared=row["user_id"] is None,
        text=row["body"],
        kind=row["kind"],
        trust=row["trust"],
        provenance=row["provenance"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


def _found(one: Remembered) -> FoundView:
    return FoundView(
        id=one.id, text=one.text, kind=one.kind, trust=one.trust, shared=one.shared,
        created_at=one.created_at, expires_at=one.expires_at, score=one.score, by=list(one.by),
        provenance=one.provenance,
    )  # fmt: skip


@router.get("", operation_id="listMemories", response_model=Page[MemoryView])
async def get_memories(
    services: Use,
    caller: CanRead,
    namespace: Annotated[Namespace | None, Query()] = None,
    user_id: Annotated[str | None, Query(max_length=200)] = None,
    shared: Annotated[bool | None, Query()] = None,
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[MemoryView]:
    """List facts, newest first."""
    rows = await memory_admin.list_memories(
        services.db,
        caller.tenant_id,
        MemoryFilter(namespace, user_id, shared),
        before=id_of(cursor),
        limit=limit + 1,
    )
    data, next_cursor = page(rows, limit, memory_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.post(
    "",
    status_code=201,
    operation_id="saveMemory",
    response_model=MemoryView,
    responses={200: {"model": MemoryView, "description": "It was known already."}},
)
async def post_memory(
    body: MemorySave, response: Response, services: Use, caller: CanWrite
) -> MemoryView:
    """Keep a fact by hand. Secrets and pages are refused, as they are to agents."""
    whose = Whose(caller.tenant_id, body.namespace, body.owner())
    config = services.config.memory
    fact = NewFact(
        memories.checked(body.text),
        body.kind,
        provenance={"said_by": "operator", "by": caller.name},
        expires_days=body.expires_days or config.expires_days,
    )
    row, made = await memory_admin.keep(
        services.db, whose, fact, services.embedder,
        max_facts=config.max_facts, actor=caller.actor,
    )  # fmt: skip
    response.status_code = 201 if made else 200
    return memory_view(row)


@router.post("/search", operation_id="searchMemories", response_model=MemorySearchView)
async def post_search(body: MemorySearch, services: Use, caller: CanRead) -> MemorySearchView:
    """Find facts by words and by meaning, as `memory_search` does for an agent."""
    whose = Whose(caller.tenant_id, body.namespace, body.user_id or "")
    found = await memories.search(
        services.db, whose, body.query, services.embedder, limit=body.limit
    )
    meaning = any("meaning" in one.by for one in found)
    return MemorySearchView(data=[_found(one) for one in found], meaning=meaning)


@router.post("/forget", operation_id="forgetMemories", response_model=ForgottenView)
async def post_forget(body: MemoryForget, services: Use, caller: CanWrite) -> ForgottenView:
    """Delete facts for good: of a user, of a namespace, or those that hold all words of a query."""
    body.check_some()
    count, more = await memory_admin.forget_many(
        services.db,
        caller.tenant_id,
        MemoryFilter(body.namespace, body.user_id, body.shared),
        body.query,
        dry_run=body.dry_run,
        actor=caller.actor,
    )
    return ForgottenView(count=count, more=more, dry_run=body.dry_run)


@router.get("/{memory_id}", operation_id="getMemory", response_model=MemoryView)
async def get_memory(memory_id: MemoryId, services: Use, caller: CanRead) -> MemoryView:
    """Read a fact, and where it comes from."""
    return memory_view(await memory_admin.read_memory(services.db, caller.tenant_id, memory_id))


@router.delete("/{memory_id}", status_code=204, operation_id="forgetMemory")
async def delete_memory(memory_id: MemoryId, services: Use, caller: CanWrite) -> None:
    """Delete a fact for good: the next step of every run is without it."""
    await memory_admin.forget_one(services.db, caller.tenant_id, memory_id, caller.actor)
