"""Claims and reads of runs: statements that change nothing but who owns a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.tables import Params, Tables, as_json

_NOT_CLAIMED: Final = ("stop_reason", "error", "output")
"""What only an ended run has: a claim leaves it out."""
_WAIT_AT_MOST_S: Final = 0.25
_FAR_S: Final = 60.0
WITHOUT_CALLS: Final = ("model", "compact")


def claim(t: Tables, p: Params) -> list[Row]:
    """Take ownership of runs that are ready: `claim.sql`."""
    out = []
    for want in json_codec.loads(p["wants"]):
        tenant_id, run_id = UUID(want["tenant_id"]), UUID(want["run_id"])
        row = t.runs.get(tenant_id, run_id)
        if row is None or not _is_ready(t, row, want, p["worker"]):
            continue
        now = t.clock()
        row = t.runs.update(
            row,
            {
                "fence": row["fence"] + 1,
                "claim_id": want["claim_id"],
                "claimed_by": p["worker"],
                "claimed_at": now,
                "attempt": row["attempt"] + 1,
                "wake_at": now + timedelta(seconds=p["hold_s"]),
            },
        )
        out.append(_claimed(t, row, want["have"]))
    return out


def _is_ready(t: Tables, row: Row, want: Row, worker: UUID) -> bool:
    ready = (
        row["version"] == want["version"] and row["status"] == "running" and row["claim_id"] is None
    )
    if not ready or row["deaths"] < 2:
        return ready
    alone = t.workers.get(worker)
    return alone is not None and alone["concurrency"] == 1


def _claimed(t: Tables, row: Row, have: int) -> Row:
    key = row["tenant_id"], row["id"]
    slot = t.tenant_slots.get(row["tenant_id"]) or {}
    first = (row["memo"].get("context") or {}).get("from") or 1
    wait_s, put_off = _place(t, slot)
    return {n: v for n, v in row.items() if n not in _NOT_CLAIMED} | {
        "now": t.clock(),
        "crowded": bool(slot.get("crowded")),
        "rated": slot.get("steps_per_s") is not None,
        "budgeted": (slot.get("tokens_per_day"), slot.get("cost_usd_per_day")) != (None, None),
        "wait_s": wait_s,
        "put_off": put_off,
        "new_messages": [
            json_codec.dumps_text(m["body"])
            for m in t.messages.of(*key)
            if max(have + 1, first) <= m["n"] <= row["messages"]
        ],
        "calls": None
        if row["next_kind"] in WITHOUT_CALLS
        else [as_json(c) for c in calls_of(t, row, row["step"] + 1)],
    }


def _place(t: Tables, slot: Row) -> tuple[float, bool]:
    """Charge a step that may start soon to its tenant's rate, or say when to come again."""
    rate = slot.get("steps_per_s")
    if rate is None:
        return 0.0, False
    now = t.clock()
    lead_s = max(0.0, ((slot["steps_tat"] or now) - now).total_seconds())
    places_s = max(0.0, ((slot["places_tat"] or now) - now).total_seconds())
    put_off = lead_s > _WAIT_AT_MOST_S
    used_s = lead_s + (0 if put_off else 1 / rate)
    next_s = max(places_s, used_s) + (1 / rate if put_off else 0)
    t.tenant_slots.update(
        slot,
        {
            "steps_tat": now + timedelta(seconds=used_s),
            "places_tat": now + timedelta(seconds=min(_FAR_S, next_s)),
        },
    )
    return (min(_FAR_S, max(places_s, lead_s)) if put_off else lead_s), put_off


def calls_of(t: Tables, run: Row, step: int) -> list[Row]:
    """Return the ledger of one step, in order."""
    found = t.tool_calls.of(run["tenant_id"], run["id"])
    return sorted((c for c in found if c["step"] == step), key=lambda c: c["idx"])


def read_run(t: Tables, p: Params) -> list[Row]:
    """Read a run as it is now; `lock_run` is the same: who has a transaction holds the store."""
    row = t.run_of(p)
    return [] if row is None else [row | {"now": t.clock()}]


def run_view(t: Tables, p: Params) -> list[Row]:
    """Read one run as the API shows it."""
    row = t.run_of(p)
    if row is None:
        return []
    worker = t.workers.get(row["claimed_by"])
    spec = (agent_of(t, row) or {}).get("spec", {})
    schema = row["overrides"].get("output_schema", spec.get("output_schema"))
    return [
        row
        | {
            "worker_name": worker and worker["name"],
            "scripted": (spec.get("model") or "").startswith("scripted/"),
            "structured": isinstance(schema, dict),
        }
    ]


def agent_of(t: Tables, run: Row) -> Row | None:
    """Return the agent version that a run pinned."""
    return next(t.agents.where(tenant_id=run["tenant_id"], id=run["agent_id"]), None)


def run_exists(t: Tables, p: Params) -> list[Row]:
    """Tell whether the tenant has the run."""
    return [] if t.run_of(p) is None else [{"id": p["run_id"]}]


def runs_progress(t: Tables, p: Params) -> list[Row]:
    """Tell how far some runs are."""
    rows = (t.runs.get(p["tenant_id"], run_id) for run_id in p["run_ids"])
    return [
        {"id": r["id"], "status": r["status"], "last_seq": r["next_seq"] - 1}
        for r in rows
        if r is not None
    ]


def events_after(t: Tables, p: Params) -> list[Row]:
    """Read events after a cursor: one row without an event when there are none."""
    row = t.run_of(p)
    if row is None:
        return []
    head = {"status": row["status"], "next_seq": row["next_seq"]}
    found = [e for e in t.events.of(p["tenant_id"], p["run_id"]) if e["seq"] > p["after"]]
    found = sorted(found, key=lambda e: e["seq"])[: p["limit"]]
    nothing = dict.fromkeys(("seq", "type", "step", "payload", "at"))
    return [head | {n: e[n] for n in nothing} for e in found or [nothing]]


def failed_attempts(t: Tables, p: Params) -> list[Row]:
    """Read the failed attempts of a run's steps."""
    return [
        {n: e[n] for n in ("seq", "step", "at", "payload")}
        for e in t.events.of(p["tenant_id"], p["run_id"])
        if e["type"] == "step.failed" and e["seq"] > p["after"]
    ][: p["limit"]]


def answers_of_steps(t: Tables, p: Params) -> list[Row]:
    """Read what the model answered, or a compaction did, in some steps."""
    return [
        {"step": e["step"], "payload": e["payload"]}
        for e in t.events.of(p["tenant_id"], p["run_id"])
        if e["type"] in {"model.answered", "context.compacted"}
        and e["step"] is not None
        and p["first"] <= e["step"] <= p["last"]
    ]


def run_messages(t: Tables, p: Params) -> list[Row]:
    """Read a run's own messages after one of them."""
    found = [m for m in t.messages.of(p["tenant_id"], p["run_id"]) if m["n"] > p["after"]]
    names = ("n", "step", "role", "trust", "body")
    return [{n: m[n] for n in names} for m in _by(found, "n")][: p["limit"]]


def run_checkpoints(t: Tables, p: Params) -> list[Row]:
    """Read a run's checkpoints after a step."""
    out = []
    for row in _by(t.checkpoints.of(p["tenant_id"], p["run_id"]), "step"):
        if row["step"] <= p["after"]:
            continue
        worker = t.workers.get(row["worker"])
        shown = {n: v for n, v in row.items() if n not in {"tenant_id", "run_id", "snapshot"}}
        more = {
            "has_snapshot": row["snapshot"] is not None,
            "worker_name": worker and worker["name"],
        }
        out.append(shown | more)
    return out[: p["limit"]]


def run_calls(t: Tables, p: Params) -> list[Row]:
    """Read the ledger of a run after a call."""
    after = p["after_step"], p["after_idx"]
    found = [
        c
        for c in t.tool_calls.of(p["tenant_id"], p["run_id"])
        if (c["step"], c["idx"]) > after and (p["to_step"] is None or c["step"] <= p["to_step"])
    ]
    return sorted(found, key=lambda c: (c["step"], c["idx"]))[: p["limit"]]


def calls_of_steps(t: Tables, p: Params) -> list[Row]:
    """Read how the calls of some steps went."""
    names = ("step", "idx", "name", "status", "duration_ms", "error_type", "cost_usd")
    found = [
        {n: c[n] for n in names}
        for c in t.tool_calls.of(p["tenant_id"], p["run_id"])
        if p["first"] <= c["step"] <= p["last"]
    ]
    return sorted(found, key=lambda c: (c["step"], c["idx"]))


def failed_in_steps(t: Tables, p: Params) -> list[Row]:
    """Count the attempts that failed at some steps."""
    failed = Counter(
        e["step"]
        for e in t.events.of(p["tenant_id"], p["run_id"])
        if e["type"] == "step.failed"
        and e["step"] is not None
        and p["first"] <= e["step"] <= p["last"]
    )
    return [{"step": step, "failed": n} for step, n in failed.items()]


def checkpoints_to(t: Tables, p: Params) -> list[Row]:
    """Read the newest snapshot at or before a step, and every delta after it."""
    rows = [
        r
        for r in _by(t.checkpoints.of(p["tenant_id"], p["run_id"]), "step")
        if r["step"] <= p["step"]
    ]
    first = max((r["step"] for r in rows if r["snapshot"] is not None), default=0)
    return [{n: r[n] for n in ("step", "delta", "snapshot")} for r in rows if r["step"] >= first]


def history(t: Tables, p: Params) -> list[Row]:
    """Read the messages of the runs before this one in its session that are still shown."""
    out: list[Row] = []
    for run in _chain(t, p["tenant_id"], p["prev_run_id"]):
        context = run["memo"].get("context")
        first = (context or {}).get("from") or 1
        blocked = run["stop_reason"] == "guardrail_blocked"
        refused = run["memo"].get("refused_from") if blocked else None
        shown = [m for m in _by(t.messages.of(run["tenant_id"], run["id"]), "n") if m["n"] >= first]
        out = [
            {
                "run_id": run["id"],
                "context": context,
                "n": m["n"],
                "body": json_codec.dumps_text(m["body"]),
                "refused": refused is not None
                and m["n"] >= refused
                and m["role"] in {"user", "tool"},
            }
            for m in shown
        ] + out
    return out


def last_runs(t: Tables, session_of: Params, run_id: UUID | None) -> Iterator[Row]:
    """List a run and those before it in a session, the newest first, down to one that has begun:
    all before that one are over.
    """
    tenant_id, session_id = session_of["tenant_id"], session_of["session_id"]
    while run_id is not None and (run := t.runs.get(tenant_id, run_id)) is not None:
        if run["session_id"] != session_id:
            return
        yield run
        run_id = None if run["started"] else run["prev_run_id"]


def is_over(run: Row) -> bool:
    """Tell whether a run has ended."""
    return run["finished_at"] is not None


def _chain(t: Tables, tenant_id: UUID, run_id: UUID | None) -> Iterator[Row]:
    while run_id is not None and (run := t.runs.get(tenant_id, run_id)) is not None:
        yield run
        context = run["memo"].get("context")
        run_id = run["prev_run_id"]
        if context is not None and context.get("history_from") is None:
            return


def recorded_answer(t: Tables, p: Params) -> list[Row]:
    """Read what the model answered in one step of a run."""
    key = p["tenant_id"], p["run_id"]
    told = [m for m in _by(t.messages.of(*key), "n") if m["role"] == "assistant"]
    for message in told:
        if message["step"] != p["step"]:
            continue
        payload = next(
            (
                e["payload"]
                for e in t.events.of(*key)
                if e["step"] == p["step"] and e["type"] == "model.answered"
            ),
            None,
        )
        more = told[-1]["n"] > message["n"]
        return [{"body": json_codec.dumps_text(message["body"]), "payload": payload, "more": more}]
    return []


def recorded_compaction(t: Tables, p: Params) -> list[Row]:
    """Tell whether a step was a compaction, and what a user message of it says."""
    key = p["tenant_id"], p["run_id"]
    step = t.checkpoints.get(*key, p["step"])
    said = (
        json_codec.dumps_text(m["body"])
        for m in _by(t.messages.of(*key), "n")
        if m["step"] == p["step"] and m["role"] == "user"
    )
    return [{"kind": step and step["kind"], "body": next(said, None)}]


def recorded_calls(t: Tables, p: Params) -> list[Row]:
    """Read how the calls of one step ended."""
    names = (
        "idx", "name", "arguments", "status", "result", "error_type", "trust", "effect",
        "tool_version",
    )  # fmt: skip
    found = t.tool_calls.of(p["tenant_id"], p["run_id"])
    return [{n: c[n] for n in names} for c in found if c["step"] == p["step"]]


def lineage_up(t: Tables, p: Params) -> list[Row]:
    """Read the runs above one, nearest first."""
    out: list[Row] = []
    row = t.run_of(p)
    while row is not None and len(out) < 100:
        above = row["parent_run_id"] or row["forked_from"]
        relation = "parent" if row["parent_run_id"] is not None else "forked_from"
        row = t.runs.get(row["tenant_id"], above)
        if row is not None:
            out.append(_related(row, relation))
    return out


def lineage_down(t: Tables, p: Params) -> list[Row]:
    """Read the children of a run and the runs from its checkpoints."""
    source = t.run_of(p)
    if source is None:
        return []
    mine = list(t.runs.where(tenant_id=p["tenant_id"], parent_run_id=p["run_id"]))
    children = sorted(mine, key=lambda r: (r["parent_step"], r["parent_idx"]))
    forks = _by(list(t.runs.where(tenant_id=p["tenant_id"], forked_from=p["run_id"])), "id")
    return [_related(r, "child") for r in children[:100]] + [
        _related(r, "retry" if r["session_id"] == source["session_id"] else "fork")
        for r in forks[:100]
    ]


def _related(row: Row, relation: str) -> Row:
    names = (
        "id", "status", "cancel_requested", "agent_name", "agent_version", "step", "created_at",
        "stop_reason", "forked_step", "parent_step", "parent_idx", "overrides",
    )  # fmt: skip
    return {n: row[n] for n in names} | {"relation": relation}


def _by(rows: list[Row], name: str) -> list[Row]:
    return sorted(rows, key=lambda row: row[name])


STATEMENTS: Final[dict[str, Any]] = {
    "claim": claim,
    "read_run": read_run,
    "lock_run": read_run,
    "run_view": run_view,
    "run_exists": run_exists,
    "runs_progress": runs_progress,
    "events_after": events_after,
    "failed_attempts": failed_attempts,
    "answers_of_steps": answers_of_steps,
    "run_messages": run_messages,
    "run_checkpoints": run_checkpoints,
    "run_calls": run_calls,
    "calls_of_steps": calls_of_steps,
    "failed_in_steps": failed_in_steps,
    "checkpoints_to": checkpoints_to,
    "history": history,
    "recorded_answer": recorded_answer,
    "recorded_compaction": recorded_compaction,
    "recorded_calls": recorded_calls,
    "lineage_up": lineage_up,
    "lineage_down": lineage_down,
}
