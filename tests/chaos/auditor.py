"""Compares at the end what clients were told, what Postgres holds and what happened outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.chaos.agents import STEPS

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
_ENDS = {"run.completed": "succeeded", "run.failed": "failed", "run.cancelled": "cancelled"}

Query = Callable[..., list[dict[str, Any]]]


@dataclass(slots=True)
class Expected:
    """What clients know of an acknowledged run."""

    agent: str
    cancelled: str | None = None


@dataclass(slots=True)
class Audit:
    """What was found. `wrong` maps a kind of violation to the runs, with what was seen."""

    wrong: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    parked: list[str] = field(default_factory=list)
    runs: int = 0
    steps: int = 0

    def blame(self, kind: str, run: UUID | str, seen: object = "") -> None:
        """Note a violation."""
        name = run if isinstance(run, str) else f"run_{run.hex}"
        self.wrong.setdefault(kind, []).append((name, str(seen)))

    def count(self, kind: str) -> int:
        """Return how many violations of a kind there are."""
        return len(self.wrong.get(kind, ()))


def unfinished(query: Query) -> list[UUID]:
    """Return the runs that are neither over nor waiting for a person because of an effect."""
    rows = query(
        "SELECT id FROM runs r WHERE NOT (status = ANY(%s)) AND NOT ("
        "status = 'waiting_approval' AND EXISTS (SELECT 1 FROM tool_calls t "
        "WHERE t.tenant_id = r.tenant_id AND t.run_id = r.id AND t.status = 'unknown'))",
        sorted(TERMINAL),
    )
    return [row["id"] for row in rows]


def audit(
    query: Query,
    expected: Mapping[str, Expected],
    effects: Path,
    unanswered: Collection[str] = (),
) -> Audit:
    """Check every promise over all runs. `query` shows one snapshot, or nothing may be written.

    `unanswered` are idempotency keys of requests that were given up: their runs may be there.
    """
    found = Audit()
    runs = {row["id"]: row for row in query("SELECT * FROM runs")}
    keys = query("SELECT run_id FROM idempotency_keys WHERE key = ANY(%s)", list(unanswered))
    _existence(found, runs, expected, {f"run_{row['run_id'].hex}" for row in keys})
    stuck = set(unfinished(query))
    for run in runs.values():
        _one_run(found, run, stuck, expected.get(f"run_{run['id'].hex}"))
    _steps(found, query, runs)
    _events(found, query, runs)
    _effects(found, query, effects)
    _slots(found, query, runs)
    found.runs = len(runs)
    found.steps = sum(run["step"] for run in runs.values())
    return found


def _existence(
    found: Audit, runs: dict[UUID, Any], expected: Mapping[str, Expected], maybe: set[str]
) -> None:
    known = {f"run_{run.hex}" for run in runs}
    for name in expected.keys() - known:
        found.blame("lost", name, "acknowledged, and not there")
    for name in known - expected.keys() - maybe:
        found.blame("unasked_runs", name, "there, and acknowledged to nobody")


def _one_run(
    found: Audit, run: dict[str, Any], stuck: set[UUID], expected: Expected | None
) -> None:
    status, reason = run["status"], run["stop_reason"]
    found.outcomes[f"{status}/{reason}" if reason else status] += 1
    if run["id"] in stuck:
        seen = {k: run[k] for k in ("status", "step", "version", "claim_id", "wake_at", "rings")}
        found.blame("stuck", run["id"], seen)
    elif status == "waiting_approval":
        found.parked.append(f"run_{run['id'].hex}")
    if status != "running" and run["claim_id"] is not None:
        found.blame("still_claimed", run["id"], status)
    if expected is None:
        return
    if status == "succeeded" and run["step"] != STEPS[expected.agent]:
        found.blame("wrong_steps", run["id"], f"{run['step']} of {expected.agent}")
    if status == "failed":
        found.blame("failed", run["id"], run["error"])
    accepted = expected.cancelled is not None and expected.cancelled not in TERMINAL
    if accepted and status in TERMINAL - {"cancelled"}:
        found.blame("cancels_ignored", run["id"], f"answered {expected.cancelled}, is {status}")


def _steps(found: Audit, query: Query, runs: dict[UUID, Any]) -> None:
    rows = query(
        "SELECT run_id, array_agg(step ORDER BY step) AS steps FROM checkpoints GROUP BY 1"
    )
    have = {row["run_id"]: row["steps"] for row in rows}
    for run in runs.values():
        steps = have.get(run["id"], [])
        if len(steps) != len(set(steps)):
            found.blame("duplicated_steps", run["id"], steps)
        if sorted(set(steps)) != list(range(1, run["step"] + 1)):
            found.blame("lost_steps", run["id"], f"{steps}, the run says {run['step']}")
    for row in query(
        "SELECT run_id, step, count(*) AS n FROM events WHERE type = 'step.completed' "
        "GROUP BY 1, 2 HAVING count(*) > 1"
    ):
        found.blame("duplicated_steps", row["run_id"], f"step {row['step']} {row['n']} times")


def _events(found: Audit, query: Query, runs: dict[UUID, Any]) -> None:
    rows = query(
        "SELECT run_id, count(*) AS n, min(seq) AS low, max(seq) AS high, "
        "array_agg(type ORDER BY seq) FILTER (WHERE type = ANY(%s)) AS ends FROM events GROUP BY 1",
        sorted(_ENDS),
    )
    logs = {row["run_id"]: row for row in rows}
    for run in runs.values():
        log = logs.get(run["id"])
        if log is None or (log["low"], log["high"]) != (1, log["n"]):
            found.blame("event_gaps", run["id"], log)
            continue
        if run["next_seq"] != log["n"] + 1:
            found.blame("event_gaps", run["id"], f"next is {run['next_seq']}, have {log['n']}")
        ends = [_ENDS[name] for name in log["ends"] or []]
        if ends != ([run["status"]] if run["status"] in TERMINAL else []):
            found.blame("double_terminals", run["id"], f"{ends}, the run is {run['status']}")


def _effects(found: Audit, query: Query, effects: Path) -> None:
    """Compare the lines outside with the ledger: nobody authorised a second attempt here."""
    lines = Counter(effects.read_text().splitlines() if effects.exists() else [])
    calls = query(
        "SELECT run_id, step, idx, status, attempt, arguments->>'line' AS line FROM tool_calls "
        "WHERE name IN ('append_line', 'slow_line')"
    )
    for call in calls:
        n = lines.pop(call["line"], 0)
        seen = f"{call['line']!r} {n} times; {call['status']} after {call['attempt']} attempts"
        if n > 1:
            found.blame("duplicated_effects", call["run_id"], seen)
        elif call["status"] == "succeeded" and n == 0:
            found.blame("lost_effects", call["run_id"], seen)
        elif n and call["status"] not in {"succeeded", "unknown", "running"}:
            found.blame("unrecorded_effects", call["run_id"], seen)
    for line in lines:
        found.blame("unrecorded_effects", line.partition(" ")[0], f"{line!r} is in no ledger")


def _slots(found: Audit, query: Query, runs: dict[UUID, Any]) -> None:
    running = Counter(run["tenant_id"] for run in runs.values() if run["status"] == "running")
    for row in query("SELECT tenant_id, running FROM tenant_slots"):
        if row["running"] != running[row["tenant_id"]]:
            seen = f"{row['running']} counted, {running[row['tenant_id']]} are running"
            found.blame("wrong_slots", f"tenant {row['tenant_id']}", seen)
