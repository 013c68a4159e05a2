"""The ledger of tool calls: intents, results, what is unknown, and what a person says of it."""

from __future__ import annotations

from typing import Any, Final

from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.approvals import acting_name
from harness_common.store.memory.commit import end_calls, evidence
from harness_common.store.memory.tables import Params, Tables, as_json


def call_intent(t: Tables, p: Params) -> list[Row]:
    """Write the intent: by the owner, only if no cancel was asked, once, and for exactly what was
    approved.
    """
    call, run = t.call_of(p), t.owned(p)
    if call is None or run is None or run["version"] != p["version"] or run["cancel_requested"]:
        return []
    if call["attempt_id"] != p["prior_attempt_id"] or call["status"] not in p["from_status"]:
        return []
    if p["approval_id"] is not None and not _use(t, p, p["approval_digest"]):
        return []
    t.runs.update(run, {"next_seq": run["next_seq"] + 1})
    policy = None if p["policy"] is None else json_codec.loads(p["policy"])
    ran = None if p["ran_arguments"] is None else json_codec.loads(p["ran_arguments"])
    names = ("attempt_id", "effect", "tool_version", "fingerprint", "served_by")
    call = t.tool_calls.update(
        call,
        {name: p[name] for name in names}
        | {
            "status": "running",
            "attempt": call["attempt"] + 1,
            "ran_arguments": ran,
            "started_at": t.clock(),
            "resume_at": None,
            "policy": call["policy"] if policy is None else policy,
        },
    )
    worker = t.workers.get(run["claimed_by"])
    told = json_codec.loads(p["payload"]) | {"worker": worker and worker["name"]}
    _event(t, run, "tool.started", p["step"], told)
    return [{"attempt": call["attempt"]}]


def _event(t: Tables, run: Row, kind: str, step: int | None, payload: Row) -> None:
    key = {"tenant_id": run["tenant_id"], "run_id": run["id"], "seq": run["next_seq"]}
    t.events.insert(key | {"type": kind, "step": step, "payload": payload})


def event_append(t: Tables, p: Params) -> list[Row]:
    """Add one event from the owner of a running step."""
    run = t.owned(p)
    if run is None:
        return []
    t.runs.update(run, {"next_seq": run["next_seq"] + 1})
    _event(t, run, p["type"], p["step"], json_codec.loads(p["payload"]))
    return [{"seq": run["next_seq"]}]


def _use(t: Tables, p: Params, digest: str) -> bool:
    """Use up a person's yes, if it is for exactly this."""
    row = t.approvals.get(p["tenant_id"], p["approval_id"])
    if row is None or row["status"] != "approved":
        return False
    said = (row["run_id"], row["step"], row["idx"], row["digest"], row["tool_version"])
    if said != (p["run_id"], p["step"], p["idx"], digest, p["tool_version"]):
        return False
    t.approvals.update(row, {"status": "used", "used_at": t.clock()})
    return True


def approval_use(t: Tables, p: Params) -> list[Row]:
    """Use an approval for a call that needs no intent: by the owner, if no cancel was asked."""
    run = t.owned(p)
    if run is None or run["version"] != p["version"] or run["cancel_requested"]:
        return []
    return [{"id": p["approval_id"]}] if _use(t, p, p["digest"]) else []


def call_result(t: Tables, p: Params) -> list[Row]:
    """Record how an attempt ended; the first of result and "unknown" wins, a later result is
    evidence. This very result, written already, has won.
    """
    call = t.call_of(p)
    if call is None or not _is_attempt(call, p):
        return [{"won": False}]
    if call["status"] == "unknown":
        late = (call["evidence"] or {}) | json_codec.loads(p["evidence"])
        t.tool_calls.update(call, {"evidence": late})
    if call["status"] != "running":
        same = call["status"] == p["status"] != "unknown" and call["result"] == p["result"]
        return [{"won": same}]
    names = (
        "status", "result", "error_type", "trust", "artifacts", "duration_ms", "cost_usd",
        "resume_at",
    )  # fmt: skip
    over = {"finished_at": t.clock() if p["status"] != "running" else None}
    t.tool_calls.update(call, {name: p[name] for name in names} | over)
    return [{"won": True}]


def _is_attempt(call: Row, p: Params) -> bool:
    return bool(call["attempt_id"] == p["attempt_id"])


def call_give_up(t: Tables, p: Params) -> list[Row]:
    """Close an attempt that will bring no result; loses to a result that came first."""
    call = t.call_of(p)
    if (
        call is None
        or not _is_attempt(call, p)
        or call["status"] != "running"
        or call["resume_at"] is not None
    ):
        return []
    why = evidence(p["why"], call)
    t.tool_calls.update(call, {"status": p["status"], "finished_at": t.clock(), "evidence": why})
    return [{"marked": 1}]


def call_read(t: Tables, p: Params) -> list[Row]:
    """Read one ledger row."""
    call = t.call_of(p)
    return [] if call is None else [{"call": as_json(call)}]


def call_keep(t: Tables, p: Params) -> list[Row]:
    """Keep what reads and idempotent calls gave while others of the step go on: by the owner."""
    run = t.owned(p)
    if run is None or run["version"] != p["version"]:
        return []
    kept = end_calls(t, run, json_codec.loads(p["outcomes"]))
    return [{"idx": call["idx"]} for call in kept]


def call_propose(t: Tables, p: Params) -> list[Row]:
    """Make the ledger row of a call that code asks for within a step, or find it: by the owner."""
    run = t.owned(p)
    if run is None or run["version"] != p["version"]:
        return []
    found = [c for c in t.tool_calls.of(p["tenant_id"], p["run_id"]) if c["step"] == p["step"]]
    for call in found:
        if call["tool_use_id"] == p["tool_use_id"]:
            return [{"call": as_json(call)}]
    names = ("tenant_id", "run_id", "step", "tool_use_id", "name")
    made = {
        "idx": max((c["idx"] for c in found), default=-1) + 1,
        "arguments": json_codec.loads(p["arguments"]),
        "status": "proposed",
    }
    return [{"call": as_json(t.tool_calls.insert({n: p[n] for n in names} | made))}]


def call_needs(t: Tables, p: Params) -> list[Row]:
    """Keep what a call that needs a person is to be made again with: by the owner."""
    call = t.call_of(p)
    if call is None or t.owned(p) is None:
        return []
    t.tool_calls.update(call, {"kept": json_codec.loads(p["kept"]), "answer": None})
    return [{"kept": 1}]


def call_cached(t: Tables, p: Params) -> list[Row]:
    """Find the latest result of the same read within a session that may still be used again."""
    now = t.clock()
    found = [
        c
        for c in t.tool_calls.where(tenant_id=p["tenant_id"], fingerprint=p["fingerprint"])
        if c["status"] == "succeeded"
        and c["cached_until"] is not None
        and c["cached_until"] > now
        and t.runs.get(c["tenant_id"], c["run_id"])["session_id"] == p["session_id"]  # type: ignore[index]
    ]
    return sorted(found, key=lambda c: c["cached_until"], reverse=True)[:1]


def effect_read(t: Tables, p: Params) -> list[Row]:
    """Read one call with what a person needs to decide about it."""
    call = t.call_of(p)
    return [] if call is None else [_about(t, call)]


def effects_unknown(t: Tables, p: Params) -> list[Row]:
    """Read calls of which nobody knows whether they took effect, the newest run's first."""
    found = [
        c
        for c in t.tool_calls.where(tenant_id=p["tenant_id"], status="unknown")
        if p["run_id"] in {None, c["run_id"]} and _is_after(c, p)
    ]
    found.sort(key=lambda c: (c["step"], c["idx"]))
    found.sort(key=lambda c: c["run_id"], reverse=True)
    return [_about(t, call) for call in found[: p["limit"]]]


def _is_after(call: Row, p: Params) -> bool:
    if p["after_run"] is None or call["run_id"] < p["after_run"]:
        return True
    after = (p["after_step"], p["after_idx"])
    return call["run_id"] == p["after_run"] and (call["step"], call["idx"]) > after


def _about(t: Tables, call: Row) -> Row:
    run = t.runs.get(call["tenant_id"], call["run_id"])
    assert run is not None
    named = f"{call['step']}.{call['idx']}"
    workers = [
        e["payload"].get("worker")
        for e in t.events.of(call["tenant_id"], call["run_id"])
        if e["type"] == "tool.started" and e["payload"].get("call") == named
    ]
    return call | {
        "run_status": run["status"],
        "run_step": run["step"],
        "agent_name": run["agent_name"],
        "acting_name": acting_name(run),
        "run_cancel_requested": run["cancel_requested"],
        "worker": workers[-1] if workers else None,
    }


def effect_resolve(t: Tables, p: Params) -> list[Row]:
    """Write what a person says became of an unknown effect; no row when somebody was first."""
    call = t.call_of(p)
    if call is None or call["status"] != "unknown":
        return []
    again, now = p["status"] == "proposed", t.clock()
    before = {
        "evidence": call["evidence"],
        "error_type": call["error_type"],
        "result_before": call["result"] and call["result"][:2000],
        "before": call["resolution"],
    }
    said = json_codec.loads(p["resolution"]) | {"at": now.isoformat()}
    t.tool_calls.update(
        call,
        {
            "status": p["status"],
            "result": p["result"],
            "error_type": p["error_type"],
            "trust": "trusted",
            "finished_at": None if again else now,
            "attempt_id": None if again else call["attempt_id"],
            "resume_at": None,
            "authorised": call["authorised"] + again,
            "evidence": None if again else call["evidence"],
            "resolution": said | {n: v for n, v in before.items() if v is not None},
        },
    )
    return [{"step": p["step"], "idx": p["idx"]}]


def effects_left(t: Tables, p: Params) -> list[Row]:
    """Count the unknown calls of a step."""
    found = t.tool_calls.of(p["tenant_id"], p["run_id"])
    return [{"n": sum(c["step"] == p["step"] and c["status"] == "unknown" for c in found)}]


STATEMENTS: Final[dict[str, Any]] = {
    "call_intent": call_intent,
    "event_append": event_append,
    "approval_use": approval_use,
    "call_result": call_result,
    "call_give_up": call_give_up,
    "call_read": call_read,
    "call_keep": call_keep,
    "call_propose": call_propose,
    "call_needs": call_needs,
    "call_cached": call_cached,
    "effect_read": effect_read,
    "effects_unknown": effects_unknown,
    "effect_resolve": effect_resolve,
    "effects_left": effects_left,
}
