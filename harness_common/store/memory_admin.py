"""Memories as people look after them: list, keep by hand, delete by owner or by what they say.

Used by the API. Each change leaves an audit row, which holds no word of any fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, func, or_, select

from harness_common.contracts.embeddings import Embedder
from harness_common.core.errors import NotFound
from harness_common.core.fact import search_words, words_of
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.memories import NewFact, Whose, save_in, vector_of
from harness_common.store.schema import memories

_SHOWN: Final = (
    memories.c.tenant_id,
    memories.c.id,
    memories.c.scope,
    memories.c.user_id,
    memories.c.body,
    memories.c.kind,
    memories.c.trust,
    memories.c.provenance,
    memories.c.created_at,
    memories.c.expires_at,
    memories.c.embedded_by,
)
_BATCH: Final = 5_000
"""How many facts one request deletes at most."""


@dataclass(frozen=True, slots=True)
class MemoryFilter:
    """Which facts; all that is given must hold."""

    namespace: str | None = None
    user_id: str | None = None
    """'' for those of runs without a user."""
    shared: bool | None = None
    """Whether all users of the namespace see it."""

    def where(self, tenant_id: UUID) -> ColumnElement[bool]:
        """Return the condition."""
        found: list[ColumnElement[bool]] = [memories.c.tenant_id == tenant_id]
        if self.namespace is not None:
            found.append(memories.c.scope == self.namespace)
        if self.user_id is not None:
            found.append(memories.c.user_id == self.user_id)
        if self.shared is not None:
            is_shared = memories.c.user_id.is_(None)
            found.append(is_shared if self.shared else ~is_shared)
        return and_(*found)

    def to_json(self) -> dict[str, Any]:
        """Write it for the audit trail."""
        pairs = (("namespace", self.namespace), ("user_id", self.user_id), ("shared", self.shared))
        return {name: value for name, value in pairs if value is not None}


async def list_memories(
    db: Database, tenant_id: UUID, wanted: MemoryFilter, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return facts, newest first; those whose time is over are not shown."""
    alive = or_(memories.c.expires_at.is_(None), memories.c.expires_at > func.clock_timestamp())
    query = select(*_SHOWN).where(wanted.where(tenant_id), alive)
    if before is not None:
        query = query.where(memories.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(memories.c.id.desc()).limit(limit), db.timeout_s)


async def read_memory(db: Database, tenant_id: UUID, memory_id: UUID) -> Row:
    """Read a fact; raises `NotFound`."""
    query = select(*_SHOWN).where(memories.c.tenant_id == tenant_id, memories.c.id == memory_id)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise _no_memory(memory_id)
    return rows[0]


async def keep(
    db: Database,
    whose: Whose,
    fact: NewFact,
    embedder: Embedder | None,
    *,
    max_facts: int,
    actor: Actor,
) -> tuple[Row, bool]:
    """Keep a fact by hand; return it and whether it is new. Raises `Limited` (`MEMORY_FULL`)."""
    vector = await vector_of(embedder, fact.text)
    async with db.tenant_transaction(whose.tenant_id) as conn:
        made = await save_in(conn, whose, fact, vector, max_facts, db.timeout_s)
        target = encode("memory", made["id"])
        entry = Entry("memory.save", target, {"namespace": whose.scope, "made": made["made"]})
        record(conn, whose.tenant_id, actor, entry)
    return await read_memory(db, whose.tenant_id, made["id"]), made["made"]


async def forget_one(db: Database, tenant_id: UUID, memory_id: UUID, actor: Actor) -> None:
    """Delete a fact for good; raises `NotFound`."""
    change = (
        delete(memories)
        .where(memories.c.tenant_id == tenant_id, memories.c.id == memory_id)
        .returning(memories.c.id)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        if not await run_core(conn, change, db.timeout_s):
            raise _no_memory(memory_id)
        entry = Entry("memory.forget", encode("memory", memory_id))
        record(conn, tenant_id, actor, entry)


async def forget_many(
    db: Database,
    tenant_id: UUID,
    wanted: MemoryFilter,
    query: str | None,
    *,
    dry_run: bool,
    actor: Actor,
) -> tuple[int, bool]:
    """Delete the facts that `wanted` names, with a query only those that hold all of its words;
    return how many there were and whether there are more. With `dry_run` nothing is deleted.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        ids = await _matching(conn, tenant_id, wanted, query, db.timeout_s)
        more = len(ids) > _BATCH
        ids = ids[:_BATCH]
        if not dry_run and ids:
            change = delete(memories).where(
                memories.c.tenant_id == tenant_id, memories.c.id.in_(ids)
            )
            await run_core(conn, change, db.timeout_s)
            detail = wanted.to_json() | {"deleted": len(ids), "by_words": query is not None}
            entry = Entry("memory.forget_many", wanted.namespace or "memories", detail)
            record(conn, tenant_id, actor, entry)
    return len(ids), more


async def _matching(
    conn: Connection, tenant_id: UUID, wanted: MemoryFilter, query: str | None, timeout_s: float
) -> list[UUID]:
    here = wanted.where(tenant_id)
    if query is None:
        rows = await run_core(conn, select(memories.c.id).where(here).limit(_BATCH + 1), timeout_s)
        return [row["id"] for row in rows]
    asked = func.plainto_tsquery("english", search_words(query))
    plain = select(memories.c.id).where(here, memories.c.words.op("@@")(asked)).limit(_BATCH + 1)
    found = [row["id"] for row in await run_core(conn, plain, timeout_s)]
    sealed = select(memories.c.tenant_id, memories.c.id, memories.c.body).where(
        here, memories.c.words.is_(None)
    )
    return found + _holding(await run_core(conn, sealed, timeout_s), query)


def _holding(rows: Sequence[Row], query: str) -> list[UUID]:
    words = words_of(query)
    return [row["id"] for row in rows if words and words <= words_of(row["body"])]


def _no_memory(memory_id: UUID) -> NotFound:
    shown = encode("memory", memory_id)
    return NotFound(f"no memory {shown}", code="MEMORY_NOT_FOUND", field="memory_id", value=shown)
