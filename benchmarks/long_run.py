"""(d) A long run: does step 1,000 cost more than step 10?

The store's own functions are driven in this process, claim and commit step by step with a fixed
answer, so that time and WAL of a commit are seen exactly and nothing else is. Two windows of ten
steps are compared; each holds one snapshot (every 20 steps), and their steps are made in turns.
Then a worker process makes the same run, for the time of a whole step.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final, LiteralString
from uuid import uuid4

import psycopg

from benchmarks.load import Load, open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, median
from benchmarks.stack import Lab, Stack
from harness_common.broker.publish import Doorbell
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text
from harness_common.core.step import ModelAnswered
from harness_common.store.apply import group_commit, settle
from harness_common.store.claim import Want, claim
from harness_common.store.writes import StepRecord

TITLE: Final = "one run of 1,000 steps: commits of steps 11-20 and 991-1,000"
WINDOW: Final = 10
_TEXT: Final = "An answer of usual length, the same at every step. " * 4
_ANSWER: Final = ModelAnswered(
    Message("assistant", (Text(_TEXT),)), "pause", "scripted/bench", 100, 50
)
_ROWS: LiteralString = """
SELECT sum(bytes) AS bytes FROM (
    SELECT pg_column_size(c.*) AS bytes, step FROM checkpoints c WHERE run_id = %(run)s
    UNION ALL SELECT pg_column_size(e.*), step FROM events e WHERE run_id = %(run)s
    UNION ALL SELECT pg_column_size(m.*), step FROM messages m WHERE run_id = %(run)s
) AS rows WHERE step > %(after)s AND step <= %(to)s
"""


@dataclass(slots=True)
class Window:
    """What the steps of one window cost, over all repetitions."""

    after: int
    claim_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)
    wal_bytes: list[float] = field(default_factory=list)
    """Of each repetition's whole window."""
    row_bytes: list[float] = field(default_factory=list)


def run(stack: Stack, options: Options) -> Outcome:
    steps, repeats = (200, 2) if options.quick else (1_000, 5)
    early, late = Window(WINDOW), Window(steps - WINDOW)
    with stack.lab("long") as lab:
        asyncio.run(_store(lab, steps, repeats, (early, late)))
    with stack.lab("long", {"HARNESS_STEPS_PER_TASK": "10"}) as lab:
        lab.start_scheduler()
        lab.start_workers(1)
        whole_ms, problems = asyncio.run(_worker(lab, steps))
    measures = _measures(early, late, whole_ms)
    details = {
        "steps": steps,
        "repetitions": repeats,
        "windows": [
            {
                "steps": [w.after + 1, w.after + WINDOW],
                "claim_ms": w.claim_ms,
                "commit_ms": w.commit_ms,
                "wal_bytes": w.wal_bytes,
                "row_bytes": w.row_bytes,
            }
            for w in (early, late)
        ],
        "whole_step_ms": whole_ms,
    }
    return Outcome(measures, details, problems)


def _measures(early: Window, late: Window, whole_ms: tuple[float, float]) -> list[Measure]:
    def ratio(of_late: list[float], of_early: list[float]) -> float:
        return median(of_late) / median(of_early)

    def both(before: float, after: float, unit: str) -> str:
        return f"{before:.3g} → {after:.3g} {unit}"

    time_note = both(median(early.commit_ms), median(late.commit_ms), "ms, medians")
    claim_note = both(median(early.claim_ms), median(late.claim_ms), "ms, medians")
    wal_note = f"{median(early.wal_bytes) / WINDOW:,.0f} → {median(late.wal_bytes) / WINDOW:,.0f} B"
    row_note = f"{median(early.row_bytes) / WINDOW:,.0f} → {median(late.row_bytes) / WINDOW:,.0f} B"
    return [
        Measure(
            "commit time, late ÷ early", ratio(late.commit_ms, early.commit_ms), "x", 1.3, "most",
            time_note,
        ),
        Measure(
            "claim time, late ÷ early", ratio(late.claim_ms, early.claim_ms), "x", 1.3, "most",
            claim_note,
        ),
        Measure(
            "WAL, late ÷ early", ratio(late.wal_bytes, early.wal_bytes), "x", 1.3, "most", wal_note
        ),
        Measure(
            "checkpoint, events and messages as stored, late ÷ early",
            ratio(late.row_bytes, early.row_bytes), "x", 1.3, "most", row_note,
        ),
        Measure(
            "whole step in a worker (scripted model), late ÷ early", whole_ms[1] / whole_ms[0], "x",
            note=both(*whole_ms, "ms; the model reads the whole conversation"),
        ),
    ]  # fmt: skip


async def _store(lab: Lab, steps: int, repeats: int, windows: tuple[Window, Window]) -> None:
    """Take turns between a run at step 11 and one that nears its end, so that noise hits both."""
    early, late = windows
    async with open_load(lab) as load:
        await load.agent("long", scripted(steps, text=_TEXT))
        with psycopg.connect(lab.database_url, autocommit=True) as conn:
            # The first repetition warms up: full-page images are taken, statements prepared.
            for number in range(repeats + 1):
                old, young = await _Player.start(load, conn), await _Player.start(load, conn)
                for _ in range(late.after):
                    await old.step(None)
                for _ in range(early.after):
                    await young.step(None)
                for _ in range(WINDOW):
                    await young.step(early if number else None)
                    await old.step(late if number else None)
                if number:
                    await _note_rows(load, young, early)
                    await _note_rows(load, old, late)
                lab.say(f"repetition {number} of {repeats} ({steps} steps) committed")


async def _note_rows(load: Load, player: _Player, window: Window) -> None:
    params = {"run": player.run_id, "after": window.after, "to": window.after + WINDOW}
    (row,) = await load.rows(_ROWS, params)
    window.row_bytes.append(float(row["bytes"]))


class _Player:
    """A run driven step by step: claim, a fixed answer, commit."""

    def __init__(
        self, load: Load, conn: psycopg.Connection[tuple[object, ...]], bell: Doorbell
    ) -> None:
        self._db = load.db
        self._conn = conn
        self._bell = bell
        self._version = bell.version
        self._step = 0
        self._worker = uuid4()
        self._commits = group_commit(load.db)
        self.run_id = bell.run_id

    @classmethod
    async def start(cls, load: Load, conn: psycopg.Connection[tuple[object, ...]]) -> _Player:
        """Make a new run."""
        batch = await load.submit("long", 1, "played")
        return cls(load, conn, batch.bells[0])

    async def step(self, note: Window | None) -> None:
        """Make the next step, and note what it cost."""
        self._step += 1
        lsn = _lsn(self._conn)
        begun = time.perf_counter()
        # A worker knows the messages of its runs: it asks for none that it has seen.
        want = Want(self._bell.tenant_id, self.run_id, self._version, uuid4(), have=self._step)
        (claimed,) = await claim(self._db, [want], worker=self._worker, hold_s=900)
        claim_ms = (time.perf_counter() - begun) * 1000
        assert claimed is not None
        done, record = StepDone(_ANSWER, claimed.now), StepRecord(claimed.now, self._worker)
        begun = time.perf_counter()
        applied = await settle(
            self._db, self._commits, claimed.run, [done], now=claimed.now, step=record
        )
        commit_ms = (time.perf_counter() - begun) * 1000
        self._version = applied.run.version
        if note is not None:
            note.claim_ms.append(claim_ms)
            note.commit_ms.append(commit_ms)
            if self._step == note.after + 1:
                note.wal_bytes.append(0.0)
            note.wal_bytes[-1] += _lsn(self._conn) - lsn


def _lsn(conn: psycopg.Connection[tuple[object, ...]]) -> float:
    row = conn.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").fetchone()
    assert row is not None
    return float(str(row[0]))


async def _worker(lab: Lab, steps: int) -> tuple[tuple[float, float], list[str]]:
    """Let a worker make the run; returns the mean time of a whole step in both windows."""
    async with open_load(lab) as load:
        await load.agent("long", scripted(steps, text=_TEXT))
        batch = await load.once("long", 1, "measured", timeout_s=300)
        rows = await load.rows(
            "SELECT step, extract(epoch FROM created_at)::float8 * 1000 AS ms FROM checkpoints "
            "WHERE run_id = %s",
            (batch.run_ids[0],),
        )
        at = {row["step"]: row["ms"] for row in rows}
        report = await load.report("measured", 1, steps)
    if report.problems:
        return (1.0, 1.0), list(report.problems)
    early = (at[2 * WINDOW] - at[WINDOW]) / WINDOW
    late = (at[steps] - at[steps - WINDOW]) / WINDOW
    return (early, late), []
