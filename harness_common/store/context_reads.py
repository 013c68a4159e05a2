"""What a model saw in one step, put together again from what is stored: the messages, the parts
that the step's event names, and the compaction that was in force.

No prompt is stored: the same rules that made it (`core.context_view`) make it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select

from harness_common.core.context_view import CONTEXT, Compaction, Shown, needs_history, view
from harness_common.core.errors import NotFound
from harness_common.core.message import Json, Message, from_json
from harness_common.store.claim import history_of
from harness_common.store.connection import Connection, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.run_reads import no_run
from harness_common.store.schema import checkpoints, messages, runs


@dataclass(frozen=True, slots=True)
class SeenContext:
    """What was sent in one model step."""

    answer: Json
    """The step's event `model.answered`; its `context` says what the prompt was made of."""
    system: str
    tools: tuple[Json, ...]
    shown: tuple[Shown, ...]

    @property
    def record(self) -> Json:
        """The account of the prompt."""
        return self.answer["context"]


async def read_context(db: Database, tenant_id: UUID, run_id: UUID, step: int) -> SeenContext:
    """Return what the model saw in a step; raises `NotFound` for a run that is not there, and for
    a step in which no model answered.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        return await _Reader(db, conn, tenant_id, run_id).read(step)


@dataclass(frozen=True, slots=True)
class _Reader:
    db: Database
    conn: Connection
    tenant_id: UUID
    run_id: UUID

    async def read(self, step: int) -> SeenContext:
        c = runs.c
        query = select(c.prev_run_id).where(c.tenant_id == self.tenant_id, c.id == self.run_id)
        found = await run_core(self.conn, query, self.db.timeout_s)
        if not found:
            raise no_run(self.run_id)
        answer = await self._answer(step)
        record = answer["context"]
        memo = {CONTEXT: record["compaction"]} if record.get("compaction") else {}
        past: tuple[Shown, ...] = ()
        prev_run_id = found[0]["prev_run_id"]
        if prev_run_id is not None and needs_history(memo):
            params = {"tenant_id": self.tenant_id, "prev_run_id": prev_run_id}
            past = history_of(await run_sql(self.conn, "history", params, self.db.timeout_s))
        compaction = Compaction.of(memo)
        first = 1 if compaction is None else compaction.kept_from
        own = await self._messages(first, record["seen"])
        parts = await self._parts(record["system"], record["tools"])
        return SeenContext(
            answer=answer,
            system=parts[record["system"]].get("system", ""),
            tools=tuple(parts[record["tools"]].get("tools", ())),
            shown=view(past, own, first, compaction),
        )

    async def _answer(self, step: int) -> Json:
        params = {
            "tenant_id": self.tenant_id, "run_id": self.run_id, "first": step, "last": step,
        }  # fmt: skip
        rows = await run_sql(self.conn, "answers_of_steps", params, self.db.timeout_s)
        if rows and "context" in rows[0]["payload"]:
            return rows[0]["payload"]
        c = checkpoints.c
        query = select(c.step, c.kind).where(
            c.tenant_id == self.tenant_id, c.run_id == self.run_id, c.step.between(step, step + 1)
        )
        kinds = {
            row["step"]: row["kind"] for row in await run_core(self.conn, query, self.db.timeout_s)
        }
        raise NotFound(_why_not(step, kinds.get(step)), field="step", value=step)

    async def _messages(self, first: int, last: int) -> list[Message]:
        c = messages.c
        query = (
            select(c.body)
            .where(c.tenant_id == self.tenant_id, c.run_id == self.run_id, c.n.between(first, last))
            .order_by(c.n)
        )
        rows = await run_core(self.conn, query, self.db.timeout_s)
        return [from_json(row["body"]) for row in rows]

    async def _parts(self, *digests: str) -> dict[str, Json]:
        params = {"tenant_id": self.tenant_id, "digests": list(digests)}
        rows = await run_sql(self.conn, "context_parts_read", params, self.db.timeout_s)
        found: dict[str, Json] = {row["digest"]: row["body"] for row in rows}
        return {digest: found.get(digest, {}) for digest in digests}


def _why_not(step: int, kind: str | None) -> str:
    if kind is None:
        return (
            f"step {step} is not committed in this run; `harness runs show RUN` lists its steps "
            "(a fork shows only its own)"
        )
    if kind != "model":
        return (
            f"step {step} is a {kind} step: no model was asked for an answer in it; ask for the "
            "model step before or after it"
        )
    return f"step {step} was answered from a record: nothing was sent to a model"
