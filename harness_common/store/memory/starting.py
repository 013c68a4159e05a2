"""How runs begin: tenants, agents, sessions, idempotency keys, and the first write of a run."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from harness_common.core.graph import APPROVAL_CALL
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.commit import was_begun
from harness_common.store.memory.fleet import takes
from harness_common.store.memory.runs import is_over, last_runs
from harness_common.store.memory.tables import Params, Table, Tables

_ENDED: Final = frozenset({"succeeded", "failed", "rejected", "unknown"})


def tenant_ensure(t: Tables, p: Params) -> list[Row]:
    """Make a tenant and its slots unless they are there; the only tenant gets its whole limit."""
    for row in t.tenants.where(name=p["name"]):
        return [{"tenant_id": row["tenant_id"], "made": False}]
    first = not len(t.tenants)
    made = t.tenants.insert({"name": p["name"], "operator": p["operator"]})
    granted = min(p["max_running"], p["global_max"]) if first else 0
    slots = {"tenant_id": made["tenant_id"], "max_running": p["max_running"], "granted": granted}
    t.tenant_slots.insert(slots)
    return [{"tenant_id": made["tenant_id"], "made": True}]


def slots_hold(t: Tables, p: Params) -> list[Row]:
    """Hold a tenant's slots: who has a transaction holds the store."""
    return [] if t.tenant_slots.get(p["tenant_id"]) is None else [{"held": 1}]


def start_begin(t: Tables, p: Params) -> list[Row]:
    """For each start find the agent and the session, and mint ids."""
    slot = t.tenant_slots.get(p["tenant_id"])
    if slot is None:
        return []
    return [_begun(t, p["tenant_id"], slot, one) for one in json_codec.loads(p["asked"])]


def _begun(t: Tables, tenant_id: UUID, slot: Row, asked: Row) -> Row:
    agent = newest(t.agents, tenant_id, asked["agent"], asked["agent_version"]) or {}
    session_id = asked["session_id"] and UUID(asked["session_id"])
    session = t.sessions.get(tenant_id, session_id) or {}
    going = session_going(t, {"tenant_id": tenant_id, "session_id": session_id})
    waiting = t.runs.where(tenant_id=tenant_id, status="queued", held_for=None)
    queue = agent.get("spec", {}).get("queue") or "steps.default"
    at_once = slot["starts_per_s"] is None and takes(t, queue)
    return {
        "run_id": t.ids(),
        "new_session_id": t.ids(),
        "now": t.clock(),
        "running": slot["running"],
        "may_run": min(slot["max_running"], slot["granted"]) if at_once else 0,
        "agent_id": agent.get("id"),
        "agent_name": agent.get("name"),
        "agent_version": agent.get("version"),
        "spec": agent.get("spec"),
        "session_id": session.get("id"),
        "closed_at": session.get("closed_at"),
        "head_run_id": session.get("head_run_id"),
        "going_run_id": going[0]["run_id"] if going else None,
        "others_wait": any(True for _ in waiting),
    }


def start_insert(t: Tables, p: Params) -> list[Row]:
    """Write new runs with their sessions, first messages, copied ledger and events."""
    for w in json_codec.loads(p["runs"]):
        _insert(t, w)
    return [{}]


def _insert(t: Tables, w: Row) -> None:
    source = w["forked_from"] and t.runs.get(UUID(w["tenant_id"]), UUID(w["forked_from"]))
    run = t.runs.insert(_first_row(t, w, source))
    key = {"tenant_id": run["tenant_id"], "run_id": run["id"]}
    _session(t, w, run)
    if source is not None:
        _copy(t, w, source, key)
    for m in w["messages"]:
        t.messages.insert(key | m | {"body": json_codec.loads(m["body"])})
    for n, event in enumerate(w["events"], 1):
        t.events.insert(key | event | {"seq": n})
    slot = t.tenant_slots.get(run["tenant_id"])
    if w["slot_delta"] and slot is not None:
        changes = {
            "running": slot["running"] + w["slot_delta"],
            "last_admitted_at": t.clock(),
            "turn_sum": slot["turn_sum"] + run["turn_at"].timestamp(),
        }
        t.tenant_slots.update(slot, changes)


def _first_row(t: Tables, w: Row, source: Row | None) -> Row:
    own_input = source is None or (w["input"] and w["step"] == 0)
    return {name: w[name] for name in _STARTED} | {
        "id": w["run_id"],
        "messages": w["message_count"],
        "rung_at": t.clock() if w["rings"] > 0 else None,
        "next_seq": len(w["events"]) + 1,
        "input": w["input"] if own_input or source is None else source["input"],
        "started_at": t.clock() if w["started"] else None,
        "concurrency_max": source["concurrency_max"] if source else w["concurrency_max"],
    }


_STARTED: Final = (
    "tenant_id", "session_id", "agent_id", "agent_name", "agent_version", "status", "version",
    "step", "next_kind", "turn", "memo", "started", "input_tokens", "output_tokens", "cost_usd",
    "limits", "retry", "queue", "priority", "wake_at", "rings", "tags", "created_by", "trace_id",
    "prev_run_id", "forked_from", "forked_step", "overrides", "held_for", "concurrency_key",
    "parent_run_id", "parent_step", "parent_idx", "depth", "turn_at",
)  # fmt: skip


def _session(t: Tables, w: Row, run: Row) -> None:
    if w["new_session"]:
        of_run = {"tenant_id": run["tenant_id"], "id": run["session_id"], "head_run_id": run["id"]}
        t.sessions.insert(of_run | {"title": w["title"], "user_id": w["user_id"]})
        return
    session = t.sessions.get(run["tenant_id"], run["session_id"])
    if session is not None:
        t.sessions.update(session, {"head_run_id": run["id"]})


def _copy(t: Tables, w: Row, source: Row, key: Row) -> None:
    """Copy a checkpoint of another run: its state, its messages, and its ledger."""
    if w["step"] > 0:
        snapshot = base64.b64decode(w["snapshot"])
        of_fork = {"step": w["step"], "version": 0, "kind": "fork", "snapshot": snapshot}
        t.checkpoints.insert(key | of_fork)
    of_source = source["tenant_id"], source["id"]
    for m in t.messages.of(*of_source):
        if w["copy_from"] <= m["n"] <= w["copy_to"]:
            t.messages.insert(_copied(m, key, ("n", "step", "role", "trust", "body")))
    if "recorded" in w["overrides"]:
        return
    for call in t.tool_calls.of(*of_source):
        if call["name"] == APPROVAL_CALL and call["step"] == w["step"] + 1:
            # What a person said there was said to the source: this run asks for itself.
            t.tool_calls.insert(_copied(call, key, _QUESTION) | {"status": "proposed"})
        elif call["step"] <= w["step"] + 1:
            status = call["status"] if call["status"] in _ENDED else "proposed"
            status = "unknown" if was_begun(call) else status
            t.tool_calls.insert(_copied(call, key, _LEDGER) | {"status": status, "attempt": 0})


def _copied(row: Row, key: Row, names: Iterable[str]) -> Row:
    return key | {name: row[name] for name in names}


_QUESTION: Final = ("step", "idx", "tool_use_id", "name", "arguments")
_LEDGER: Final = (
    "step", "idx", "tool_use_id", "name", "tool_version", "arguments", "fingerprint", "effect",
    "result", "error_type", "trust", "artifacts", "duration_ms", "cost_usd", "input_tokens",
    "output_tokens", "started_at", "finished_at", "ran_arguments", "failed_attempts",
    "duplicate_of", "cached_from", "served_by", "policy",
)  # fmt: skip


def newest(table: Table, tenant_id: UUID, name: str, version: int | None = None) -> Row | None:
    """Return a version of what is kept in versions by name, the newest when none is named."""
    found = [
        r for r in table.where(tenant_id=tenant_id, name=name) if version in {None, r["version"]}
    ]
    return max(found, key=lambda r: r["version"], default=None)


def input_insert(t: Tables, p: Params) -> list[Row]:
    """Record an outside input."""
    t.inputs.insert({**p, "body": json_codec.loads(p["body"])})
    return []


def idempotency(t: Tables, p: Params) -> list[Row]:
    """Reserve an idempotency key for one run; an old one past its time is taken over."""
    now = t.clock()
    row = t.idempotency_keys.get(p["tenant_id"], p["route"], p["key"])
    mine = {"body_digest": p["digest"], "run_id": p["run_id"]}
    if row is None:
        names = ("tenant_id", "route", "key")
        t.idempotency_keys.insert({n: p[n] for n in names} | mine)
        return [{"reserved": True}]
    if row["created_at"] < now - timedelta(seconds=p["ttl_s"]):
        t.idempotency_keys.update(row, mine | {"created_at": now})
        return [{"reserved": True}]
    return [{"reserved": False}]


def idempotency_read(t: Tables, p: Params) -> list[Row]:
    """Read what an idempotency key made."""
    row = t.idempotency_keys.get(p["tenant_id"], p["route"], p["key"])
    run = row and t.runs.get(p["tenant_id"], row["run_id"])
    if row is None or run is None:
        return []
    past = row["created_at"] < t.clock() - timedelta(seconds=p["ttl_s"])
    of_key = {"body_digest": row["body_digest"], "run_id": row["run_id"], "past": past}
    return [of_key | {"session_id": run["session_id"], "status": run["status"]}]


def session_going(t: Tables, p: Params) -> list[Row]:
    """Read the runs of a session that are not over, the newest first."""
    session = t.sessions.get(p["tenant_id"], p["session_id"]) or {}
    found = last_runs(t, p, session.get("head_run_id"))
    return [
        {"run_id": r["id"], "cancel_requested": r["cancel_requested"]}
        for r in found
        if not is_over(r)
    ]


def memory_owner(t: Tables, p: Params) -> list[Row]:
    """Say whose a session is: '' for nobody's."""
    session = t.sessions.get(p["tenant_id"], p["session_id"])
    return [] if session is None else [{"user_id": session["user_id"] or ""}]


def session_memory(t: Tables, p: Params) -> list[Row]:
    """Read what a run's session remembers, and what the run was asked."""
    run = t.run_of(p)
    session = run and t.sessions.get(run["tenant_id"], run["session_id"])
    if run is None or session is None:
        return []
    summary = session["memory_summary"]
    return [{"tenant_id": run["tenant_id"], "memory_summary": summary, "input": run["input"]}]


def retry_of(t: Tables, p: Params) -> list[Row]:
    """Find the first retry of a run."""
    source = t.run_of(p)
    if source is None:
        return []
    same = {"forked_from": source["id"], "session_id": source["session_id"]}
    found = sorted(r["id"] for r in t.runs.where(tenant_id=source["tenant_id"], **same))
    return [{"id": run_id} for run_id in found[:1]]


def retry_follows(t: Tables, p: Params) -> list[Row]:
    """Say what a retry comes after in its session."""
    session = t.sessions.get(p["tenant_id"], p["session_id"]) or {}
    last = run = t.runs.get(p["tenant_id"], session.get("head_run_id"))
    if last is not None and last["status"] == "succeeded":
        run = None
    while run is not None and run["id"] != p["run_id"]:
        run = t.runs.get(p["tenant_id"], run["forked_from"])
        if run is not None and run["session_id"] != p["session_id"]:
            break
    if last is None:
        return []
    is_its = run is not None and run["id"] == p["run_id"]
    return [{"prev_run_id": last["prev_run_id"] if is_its else last["id"]}]


def child_read(t: Tables, p: Params) -> list[Row]:
    """Read the child run of one call."""
    mine = {"parent_run_id": p["run_id"], "parent_step": p["step"], "parent_idx": p["idx"]}
    for run in t.runs.where(tenant_id=p["tenant_id"], **mine):
        agent = next(t.agents.where(tenant_id=run["tenant_id"], id=run["agent_id"]), None)
        spec = agent["spec"] if agent else {}
        said = t.messages.of(run["tenant_id"], run["id"])
        names = (
            "id", "status", "output", "stop_reason", "error", "cost_usd", "input_tokens",
            "output_tokens", "limits",
        )  # fmt: skip
        return [
            {n: run[n] for n in names}
            | {
                "untrusted": any(m["trust"] == "untrusted" for m in said),
                "marks": run["memo"].get("marks") or [],
                "own_tokens": spec.get("max_tokens_total"),
                "own_cost_usd": spec.get("max_cost_usd"),
            }
        ]
    return []


def child_before(t: Tables, p: Params) -> list[Row]:
    """Name the run that this one goes on from, if it had a child for the same call."""
    run = t.run_of(p)
    if run is None or run["forked_from"] is None or run["forked_step"] + 1 != p["step"]:
        return []
    found = child_read(t, {**p, "run_id": run["forked_from"]})
    return [{"run_id": run["forked_from"]} for _ in found]


def children_budget(t: Tables, p: Params) -> list[Row]:
    """Add up what the children of a step have used or may still use."""
    mine = {"parent_run_id": p["run_id"], "parent_step": p["step"]}
    children = list(t.runs.where(tenant_id=p["tenant_id"], **mine))
    tokens, cost = 0, 0.0
    for run in children:
        over = run["finished_at"] is not None
        used = run["input_tokens"] + run["output_tokens"]
        tokens += used if over else run["limits"].get("max_tokens") or 0
        cost += run["cost_usd"] if over else run["limits"].get("max_cost_usd") or 0.0
    return [{"started": len(children), "tokens": tokens, "cost_usd": cost}]


def fork_hold(t: Tables, p: Params) -> list[Row]:
    """Say what of a run is gone already, and how it began; there is nobody here who would delete
    the rest.
    """
    run = t.runs.get(p["tenant_id"], p["run_id"])
    names = ("pruned", "forked_step", "created_at")
    return [] if run is None else [{name: run[name] for name in names}]


STATEMENTS: Final[dict[str, Any]] = {
    "tenant_ensure": tenant_ensure,
    "slots_hold": slots_hold,
    "start_begin": start_begin,
    "start_insert": start_insert,
    "input_insert": input_insert,
    "idempotency": idempotency,
    "idempotency_read": idempotency_read,
    "session_going": session_going,
    "fork_hold": fork_hold,
    "memory_owner": memory_owner,
    "session_memory": session_memory,
    "retry_of": retry_of,
    "retry_follows": retry_follows,
    "child_read": child_read,
    "child_before": child_before,
    "children_budget": children_budget,
}
