"""Playing runs against the real store: tenants, claims and steps without a worker process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import text

from harness_common.commands import StartRun, start_run
from harness_common.contracts.agent import AgentSpec
from harness_common.core.inputs import Input, StepDone
from harness_common.core.message import Message, Text, ToolUse, loads
from harness_common.core.rules import advance
from harness_common.core.step import (
    CallOutcome,
    ModelAnswered,
    StepResult,
    ToolsDone,
    ToolsWaiting,
    Wait,
)
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.apply import apply, group_commit, read_run, settle
from harness_common.store.claim import Claimed, Want, claim
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_common.store.writes import Applied, NextClaim, StepRecord, Write

WHEN = datetime(2025, 1, 1, tzinfo=UTC)


async def sql(db: Database, statement: str, **params: Any) -> list[dict[str, Any]]:
    """Run any SQL; parameters as `:name`."""
    async with db.connection() as conn:
        return await run_core(conn, text(statement).bindparams(**params), db.timeout_s)


async def make_tenant(db: Database, *, max_running: int = 100, granted: int = 100) -> UUID:
    """Make a tenant with an agent `a`."""
    tenant_id = uuid4()
    await sql(
        db, "INSERT INTO tenants (tenant_id, name) VALUES (:t, :n)", t=tenant_id, n=tenant_id.hex
    )
    await sql(
        db,
        "INSERT INTO tenant_slots (tenant_id, running, max_running, granted) "
        "VALUES (:t, 0, :m, :g)",
        t=tenant_id,
        m=max_running,
        g=granted,
    )
    await sql(
        db,
        "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) "
        "VALUES (:t, 'a', 1, cast(:s AS jsonb), '', '')",
        t=tenant_id,
        s=json_codec.dumps_text(AgentSpec(max_turns=1000).model_dump(mode="json")),
    )
    return tenant_id


async def make_worker(
    db: Database, *, silent_s: float = 0.0, queue: str = "steps.default", concurrency: int = 200
) -> UUID:
    """Make the row of a worker process that was last seen `silent_s` ago."""
    worker = uuid4()
    await sql(
        db,
        "INSERT INTO workers "
        "(incarnation, name, host, pid, queues, concurrency, version, seen_at) VALUES "
        "(:w, 'w', 'h', 1, ARRAY[cast(:q AS text)], :c, '', "
        "clock_timestamp() - make_interval(secs => :s))",
        w=worker,
        q=queue,
        c=concurrency,
        s=silent_s,
    )
    return worker


def say(text_: str = "done", *, tools: Sequence[str] = (), extra: Any = None) -> ModelAnswered:
    """Build a model's answer that asks for these tools."""
    uses = (ToolUse(f"call_{i}", name, {"i": i}) for i, name in enumerate(tools))
    message = Message("assistant", (Text(text_), *uses), extra=extra)
    return ModelAnswered(
        message, "tool_calls" if tools else "stop", "scripted/x", 3, 2, cost_usd=0.25
    )


def ran(*contents: str, status: CallStatus = CallStatus.SUCCEEDED) -> ToolsDone:
    """Build the end of a tools step."""
    return ToolsDone(
        tuple(CallOutcome(i, f"call_{i}", "look", status, c) for i, c in enumerate(contents))
    )


def waiting_until(until: datetime) -> ToolsWaiting:
    """Build the end of a tools step whose first call waits for a time."""
    wait = Wait(0, "time", until)
    call = CallOutcome(0, "call_0", "look", CallStatus.RUNNING, "", resume_at=until, wait=wait)
    return ToolsWaiting((call,))


async def make_key(db: Database, tenant_id: UUID, role: str = "admin") -> str:
    """Make the row of an API key; return who starts a run with it."""
    (row,) = await sql(
        db,
        "INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role) "
        "VALUES (:t, 'k', :p, '', :r) RETURNING 'key_' || replace(id::text, '-', '') AS key",
        t=tenant_id,
        p=uuid4().hex,
        r=role,
    )
    return str(row["key"])


@contextmanager
def undeletable(database_url: str, tenant_id: UUID) -> Iterator[None]:
    """Let every attempt to delete runs of a tenant fail, as an odd row would."""
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(
            "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'this row is odd'; END $$"
        )
        owner.execute(
            "CREATE TRIGGER odd BEFORE DELETE ON runs FOR EACH ROW "
            f"WHEN (OLD.tenant_id = '{tenant_id}') EXECUTE FUNCTION odd()"
        )
        try:
            yield
        finally:
            owner.execute("DROP TRIGGER odd ON runs")
            owner.execute("DROP FUNCTION odd()")


CONTENT = (
    *("step", "next_kind", "turn", "messages"),
    *("input_tokens", "output_tokens", "cost_usd", "memo"),
)
"""What a checkpoint says of a state."""


@dataclass
class Play:
    """Runs of one tenant."""

    db: Database
    tenant_id: UUID
    worker: UUID = field(default_factory=uuid4)

    async def start(self, input: str = "hi", **more: Any) -> UUID:
        return (await start_run(self.db, self.tenant_id, StartRun("a", input, **more))).run_id

    async def read(self, run_id: UUID) -> StoredRun:
        run = await read_run(self.db, self.tenant_id, run_id)
        assert run is not None
        return run

    async def try_claim(
        self, run_id: UUID, version: int, worker: UUID | None = None, *, have: int = 0
    ) -> Claimed | None:
        want = Want(self.tenant_id, run_id, version, uuid4(), have)
        (claimed,) = await claim(self.db, [want], worker=worker or self.worker, hold_s=900)
        return claimed

    async def claim(self, run_id: UUID, worker: UUID | None = None) -> StoredRun:
        claimed = await self.try_claim(run_id, (await self.read(run_id)).version, worker)
        assert claimed is not None
        return claimed.run

    async def settle(
        self,
        run: StoredRun,
        one: Input | StepResult,
        *,
        keep: NextClaim | None = None,
        db: Database | None = None,
        patience_s: float = 60.0,
    ) -> Applied:
        """Commit what a step gave, as its owner does."""
        is_result = isinstance(one, StepResult)
        done: Input = StepDone(one, WHEN) if is_result else one  # type: ignore[assignment,arg-type]
        (row,) = await sql(self.db, "SELECT clock_timestamp() AS now")
        record = StepRecord(row["now"], run.claimed_by or self.worker)
        db = db or self.db
        return await settle(
            db, group_commit(db), run, [done],
            now=row["now"], step=record, keep=keep, patience_s=patience_s,
        )  # fmt: skip

    async def apply(self, run: StoredRun, one: Input, *, owner: bool = False) -> Applied | None:
        """Commit once what an input makes of the run as it was seen; None when it is refused."""
        record = StepRecord(WHEN, self.worker) if owner else None
        write = Write(run, advance(run.state, [one], WHEN), WHEN, record)
        async with self.db.connection() as conn:
            (applied,) = await apply(conn, [write], timeout_s=5)
        return applied

    async def step(self, run_id: UUID, result: Input | StepResult) -> Applied:
        """Claim and commit one step."""
        return await self.settle(await self.claim(run_id), result)

    async def events(self, run_id: UUID) -> list[dict[str, Any]]:
        return await sql(self.db, "SELECT * FROM events WHERE run_id = :r ORDER BY seq", r=run_id)

    async def checkpoints(self, run_id: UUID) -> list[dict[str, Any]]:
        return await sql(
            self.db, "SELECT * FROM checkpoints WHERE run_id = :r ORDER BY step", r=run_id
        )

    async def calls(self, run_id: UUID) -> list[dict[str, Any]]:
        return await sql(
            self.db, "SELECT * FROM tool_calls WHERE run_id = :r ORDER BY step, idx", r=run_id
        )

    async def messages(self, run_id: UUID) -> list[Message]:
        rows = await sql(
            self.db, "SELECT body::text AS b FROM messages WHERE run_id = :r ORDER BY n", r=run_id
        )
        return [loads(r["b"]) for r in rows]

    async def running(self) -> int:
        """Return the tenant's slots in use, after comparing them with its running runs."""
        (row,) = await sql(
            self.db,
            "SELECT running, (SELECT count(*) FROM runs "
            "WHERE tenant_id = :t AND status = 'running') AS really "
            "FROM tenant_slots WHERE tenant_id = :t",
            t=self.tenant_id,
        )
        assert row["running"] == row["really"]
        return int(row["running"])

    async def check_whole(self, run_id: UUID) -> None:
        """Compare what holds of every run: events without a gap (INV5), each step once (INV2)."""
        run, events = await self.read(run_id), await self.events(run_id)
        assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
        (row,) = await sql(self.db, "SELECT next_seq FROM runs WHERE id = :r", r=run_id)
        assert row["next_seq"] == len(events) + 1
        steps = [c["step"] for c in await self.checkpoints(run_id)]
        assert steps == list(range(1, run.state.step + 1))
        (row,) = await sql(
            self.db, "SELECT count(*) AS n FROM messages WHERE run_id = :r", r=run_id
        )
        assert row["n"] == run.state.messages
