"""The one write of runs: `commit.sql`, part by part."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from harness_common.core.approval import EXPIRED
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.runs import WITHOUT_CALLS, calls_of, is_over, last_runs
from harness_common.store.memory.tables import Params, Tables

PROPOSED: Final = frozenset({"proposed", "validating", "awaiting_approval"})
OPEN: Final = frozenset({"running", "awaiting_approval"})

_COPIED: Final = (
    "status", "version", "step", "next_kind", "turn", "failures", "limited", "deaths", "memo",
    "started", "cancel_requested", "not_before", "stop_reason", "error", "output", "input_tokens",
    "output_tokens", "cost_usd", "pause_requested", "waiting", "turn_at", "attempt",
)  # fmt: skip


def commit(t: Tables, p: Params) -> list[Row]:
    """Write transitions of one or more runs; no row for a run that is not as the writer saw it."""
    rows = (_commit(t, w) for w in json_codec.loads(p["writes"]))
    return [row for row in rows if row is not None]


def _commit(t: Tables, w: Row) -> Row | None:
    run = t.runs.get(UUID(w["tenant_id"]), UUID(w["run_id"]))
    if run is None or not _is_as_seen(run, w):
        return None
    first_seq = run["next_seq"]
    after = t.runs.update(run, _changes(t, run, w))
    if w["terminal"]:
        _wake_parent(t, after)
    if w["session_summary"] is not None:
        session = t.sessions.get(after["tenant_id"], after["session_id"])
        if session is not None:
            t.sessions.update(session, {"memory_summary": w["session_summary"]})
    _insert(t, after, w, first_seq)
    end_calls(t, after, w["outcomes"], terminal=w["terminal"])
    if w["terminal"]:
        _close_open_calls(t, after, w)
    _approvals(t, after, w)
    if w["slot_delta"]:
        _slot(t, after, w)
    return {
        "run_id": after["id"],
        "first_seq": first_seq,
        "fence": after["fence"],
        "last_input_n": after["last_input_n"],
        "now": t.clock(),
    }


def _is_as_seen(run: Row, w: Row) -> bool:
    """Compare what the writer saw: the WHERE of the run's UPDATE."""
    claim_id = None if w["seen_claim_id"] is None else UUID(w["seen_claim_id"])
    return bool(
        run["version"] == w["seen_version"]
        and run["fence"] == w["seen_fence"]
        and run["claim_id"] == claim_id
        and run["last_input_n"] == w["seen_input_n"]
        and run["cancel_requested"] == w["seen_cancel"]
    )


def _changes(t: Tables, run: Row, w: Row) -> Row:
    now, kept, new = t.clock(), w["next_claim_id"] is not None, w["new_claim"]
    out = {name: w[name] for name in _COPIED} | {
        "messages": w["message_count"],
        "held_for": _held_for(t, run, w),
        "fence": run["fence"] + new,
        "claim_id": w["next_claim_id"],
        "claimed_by": w["worker"] if new else run["claimed_by"] if kept else None,
        "claimed_at": now if new else run["claimed_at"] if kept else None,
        "committed_by": w["committed_by"] or run["committed_by"],
        "last_input_n": run["last_input_n"] + w["input_delta"],
        "next_seq": run["next_seq"] + w["event_count"],
        "started_at": (run["started_at"] or now) if w["started"] else None,
        "finished_at": now if w["terminal"] else None,
        "updated_at": now,
    }
    if not kept or new:
        out |= {"reserved_tokens": 0, "reserved_usd": 0.0, "reserved_day": None}
    if not w["untouched"]:
        out |= {"wake_at": w["wake_at"], "rings": w["rings"]}
        if w["rings"] > 0 and not kept:
            out["rung_at"] = now
    if w["status"] == "queued" and run["status"] != "queued":
        out["queued_at"] = now
    return out


def _held_for(t: Tables, run: Row, w: Row) -> str | None:
    if w["status"] != "queued":
        return None
    if run["status"] == "queued":
        held: str | None = run["held_for"]
        return held
    before = next(last_runs(t, run, run["prev_run_id"]), None)
    if not w["started"] and before is not None and not (is_over(before) and before["started"]):
        return "session"
    return "key" if run["concurrency_key"] is not None else None


def _wake_parent(t: Tables, run: Row) -> None:
    """Wake the parent of a run that ended, if it waits for its children."""
    parent = t.runs.get(run["tenant_id"], run["parent_run_id"])
    if parent is not None and parent["status"] == "waiting_children":
        t.runs.update(parent, {"wake_at": t.clock()})


def _insert(t: Tables, run: Row, w: Row, first_seq: int) -> None:
    """Add the checkpoint, the events, the messages and the proposed calls."""
    key = {"tenant_id": run["tenant_id"], "run_id": run["id"]}
    if (step := w["checkpoint"]) is not None:
        snapshot = None if w["snapshot"] is None else base64.b64decode(w["snapshot"])
        of_step = {"step": w["step"], "version": w["version"], "snapshot": snapshot}
        claim = {"claim_id": w["seen_claim_id"], "worker": w["worker"], "fence": w["seen_fence"]}
        t.checkpoints.insert(key | of_step | claim | step)
    for n, event in enumerate(w["events"]):
        t.events.insert(key | event | {"seq": first_seq + n, "at": event["at"] or t.clock()})
    for m in w["messages"]:
        t.messages.insert(key | m | {"step": w["step"], "body": json_codec.loads(m["body"])})
    status = "cancelled" if w["terminal"] else "proposed"
    for call in w["proposed"]:
        arguments = json_codec.loads(call["arguments"])
        t.tool_calls.insert(key | call | {"status": status, "arguments": arguments})


def takes_outcome(call: Row) -> bool:
    """Tell whether the end of a call may still be written: an attempt that was begun and does not
    wait is the ledger's own.
    """
    waits = call["resume_at"] is not None or call["attempt_id"] is None
    return call["status"] in PROPOSED or (call["status"] == "running" and waits)


def end_calls(t: Tables, run: Row, outcomes: Sequence[Row], *, terminal: bool = False) -> list[Row]:
    """Write how calls ended, where that is still open; return what was written."""
    out = []
    for o in outcomes:
        call = t.tool_calls.get(run["tenant_id"], run["id"], o["step"], o["idx"])
        if call is not None and takes_outcome(call):
            out.append(t.tool_calls.update(call, _ended(t, call, o, terminal=terminal)))
    return out


def _ended(t: Tables, call: Row, o: Row, *, terminal: bool) -> Row:
    now = t.clock()
    ran = None if o["ran_arguments"] is None else json_codec.loads(o["ran_arguments"])
    over = terminal or o["status"] not in OPEN
    return {
        **{name: o[name] for name in _OUTCOME},
        **{name: call[name] if o[name] is None else o[name] for name in _KEPT},
        "ran_arguments": call["ran_arguments"] if ran is None else ran,
        "effect": call["effect"] or o["effect"],
        "answer": call["answer"] if o.get("answer") is None else o["answer"],
        "status": _end_status(call, o) if terminal and o["status"] in OPEN else o["status"],
        "started_at": call["started_at"]
        if o["status"] == "awaiting_approval"
        else (call["started_at"] or _before(now, o["duration_ms"])),
        "finished_at": now if over else None,
    }


_OUTCOME: Final = (
    "result", "error_type", "trust", "artifacts", "duration_ms", "cost_usd", "attempt",
    "resume_at", "input_tokens", "output_tokens", "failed_attempts", "duplicate_of", "cached_from",
    "cached_until",
)  # fmt: skip
_KEPT: Final = ("tool_version", "fingerprint", "served_by", "policy")
"""Columns that an outcome which does not name them leaves as they are."""


def _before(now: datetime, ms: float | None) -> datetime | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(now.timestamp() - ms / 1000, now.tzinfo)


def _end_status(call: Row, o: Row) -> str:
    answered = o.get("answer") is not None or call["answer"] is not None
    begun = o["status"] == "running" and call["effect"] == "write"
    asked_only = call["kept"] is not None and not answered and o["resume_at"] is not None
    return "unknown" if begun and not asked_only else "cancelled"


def was_begun(call: Row) -> bool:
    """Tell whether a call under way may have done something: a write that did not only ask."""
    asked_only = (
        call["kept"] is not None and call["answer"] is None and call["resume_at"] is not None
    )
    return call["status"] == "running" and call["effect"] == "write" and not asked_only


def _close_open_calls(t: Tables, run: Row, w: Row) -> None:
    """Close what a run that ends leaves open: what was begun is unknown, the rest is cancelled."""
    if w["next_kind"] in WITHOUT_CALLS:
        return
    told = {(o["step"], o["idx"]) for o in w["outcomes"]}
    for call in calls_of(t, run, w["step"] + 1):
        if (call["step"], call["idx"]) in told or call["status"] not in PROPOSED | {"running"}:
            continue
        changes: Row = {"status": "cancelled", "evidence": None, "finished_at": t.clock()}
        if was_begun(call):
            why = f"the run ended ({w['stop_reason']}) while it was under way"
            changes |= {"status": "unknown", "evidence": evidence(why, call)}
        t.tool_calls.update(call, changes)


def evidence(why: str, call: Row) -> Row:
    """Return what is known of an attempt whose outcome nobody knows."""
    started_at = call["started_at"] and call["started_at"].isoformat()
    attempt_id = call["attempt_id"] and str(call["attempt_id"])
    return {"why": why, "attempt_id": attempt_id, "started_at": started_at}


def _approvals(t: Tables, run: Row, w: Row) -> None:
    """Ask for approvals, and close those that are about nothing any more."""
    mine = list(t.approvals.where(tenant_id=run["tenant_id"], run_id=run["id"]))
    if w["expired"]:
        over = {(o["step"], o["idx"]) for o in w["outcomes"] if o["error_type"] == EXPIRED}
        for row in mine:
            if row["status"] == "pending" and (row["step"], row["idx"]) in over:
                t.approvals.update(row, {"status": "expired", "decided_at": t.clock()})
    else:
        _close_approvals(t, mine, w)
    if w["terminal"]:
        return
    again = {(a["step"], a["idx"]) for a in w["asked"]}
    for row in t.approvals.where(tenant_id=run["tenant_id"], run_id=run["id"]):
        if (row["step"], row["idx"]) in again and row["status"] in {"pending", "approved"}:
            t.approvals.update(row, {"status": "void"})
    for asked in w["asked"]:
        texts = ("arguments", "input_schema", "original_arguments")
        parsed = {n: json_codec.loads(asked[n]) for n in texts if asked.get(n) is not None}
        of_run = {"tenant_id": run["tenant_id"], "run_id": run["id"], "status": "pending"}
        t.approvals.insert(asked | parsed | of_run)


def _close_approvals(t: Tables, mine: Sequence[Row], w: Row) -> None:
    step_is_over = w["checkpoint"] is not None and w["checkpoint"]["kind"] not in WITHOUT_CALLS
    if not (step_is_over or w["terminal"]):
        return
    for row in mine:
        if row["status"] in {"pending", "approved"}:
            t.approvals.update(row, {"status": "cancelled" if w["terminal"] else "void"})


def _slot(t: Tables, run: Row, w: Row) -> None:
    """Take or give back the tenant's slot, and count what its turn has used."""
    slot = t.tenant_slots.get(run["tenant_id"])
    if slot is None:
        return
    delta, now = w["slot_delta"], t.clock()
    began = _time(w["seen_turn_at"])
    at = _time(w["turn_at"]) if delta > 0 else began
    running = slot["running"] + delta
    changes: Row = {"running": running}
    if delta < 0 and began is not None:
        changes["used_s"] = slot["used_s"] + max(0.0, (now - began).total_seconds())
    if delta > 0:
        changes["last_admitted_at"] = now
    turns = 0.0 if at is None else at.timestamp() * delta
    changes["turn_sum"] = slot["turn_sum"] + turns if running else 0.0
    t.tenant_slots.update(slot, changes)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


STATEMENTS: Final[dict[str, Any]] = {"commit": commit}
