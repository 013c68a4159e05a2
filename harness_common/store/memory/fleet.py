"""Worker processes, who leads the schedulers, and what processes that died have held."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from harness_common.core.lease import quarantine_of
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.tables import Params, Tables, as_json

_SUSPECT: Final = 2
_LEADER: Final = "scheduler"


def live_workers(t: Tables) -> Iterator[Row]:
    """List the processes that nobody has declared dead."""
    return t.workers.where(died_at=None)


def takes(t: Tables, queue: str) -> bool:
    """Tell whether a worker serves a queue, or none is there at all."""
    serving = [w for w in live_workers(t) if w["stopping_at"] is None]
    return not serving or any(queue in w["queues"] for w in serving)


def worker_register(t: Tables, p: Params) -> list[Row]:
    """Announce a worker process."""
    row = t.workers.get(p["worker"])
    if row is not None:
        t.workers.update(row, {"seen_at": t.clock()})
        return [{"now": t.clock()}]
    names = ("name", "host", "pid", "queues", "concurrency", "version")
    of_worker = {"incarnation": p["worker"], "plugins": json_codec.loads(p["plugins"])}
    t.workers.insert({n: p[n] for n in names} | of_worker)
    return [{"now": t.clock()}]


def workers_alive(t: Tables, p: Params) -> list[Row]:
    """Read the worker processes not known to be dead."""
    del p
    now = t.clock()
    names = ("incarnation", "name", "pid", "queues", "seen_at")
    return [
        {n: w[n] for n in names} | {"silent_s": (now - w["seen_at"]).total_seconds(), "now": now}
        for w in live_workers(t)
    ]


def worker_stopping(t: Tables, p: Params) -> list[Row]:
    """Note that a worker process was told to stop."""
    row = t.workers.get(p["worker"])
    if row is not None and row["stopping_at"] is None:
        t.workers.update(row, {"stopping_at": t.clock()})
    return []


def worker_leave(t: Tables, p: Params) -> list[Row]:
    """Let a worker process go that holds nothing; what it may have had in hand is rung again."""
    row = t.workers.get(p["worker"])
    held = any(r["claim_id"] is not None for r in t.runs.where(claimed_by=p["worker"]))
    if row is not None and not held:
        t.workers.delete(row)
        for run in _swallowed(t, row["queues"]):
            t.runs.update(run, {"wake_at": t.clock()})
    return []


def _swallowed(t: Tables, queues: list[str]) -> list[Row]:
    """Return the unclaimed runs that were rung on these queues."""
    return [
        r
        for r in t.runs.where(status="running", claim_id=None)
        if (quarantine_of(r["queue"]) if r["deaths"] >= _SUSPECT else r["queue"]) in queues
    ]


def worker_died(t: Tables, p: Params) -> list[Row]:
    """Declare a worker process dead, and let what it was rung for be rung again."""
    row, now = t.workers.get(p["worker"]), t.clock()
    may = p["term"] is None or leads(t, p["term"])
    if row is None or row["died_at"] is not None or not may:
        return [{"died": 0}]
    if p["only_if_silent"]:
        silent = row["seen_at"] < now - timedelta(seconds=p["silent_s"])
        if not silent or now >= p["looked_at"] + timedelta(seconds=p["silent_s"] / 2):
            return [{"died": 0}]
    t.workers.update(row, {"died_at": now, "died_why": p["why"]})
    for run in _swallowed(t, row["queues"]):
        if run["rung_at"] is not None and run["rung_at"] < now:
            t.runs.update(run, {"wake_at": now})
    return [{"died": 1}]


def heartbeat(t: Tables, p: Params) -> list[Row]:
    """Note that a process lives; answer with claims to stop or to give back, and the throttles."""
    now, row = t.clock(), t.workers.get(p["worker"])
    out = []
    if row is not None:
        alive = {"died_at": None, "died_why": None, "seen_at": now}
        if p["sandbox"] is not None:
            alive["sandbox"] = json_codec.loads(p["sandbox"])
        t.workers.update(row, alive | {n: p[n] for n in ("held", "queue_age_s")})
        own = dict.fromkeys(("tenant_id", "run_id", "claim_id"))
        told = {"condemned": row["died_at"] is not None, "cancel_requested": False, "now": now}
        ended = now - timedelta(seconds=p["throttle_ends_after_s"])
        for one in [one for one in t.throttles if max(one["next_at"], one["until"]) < ended]:
            t.throttles.delete(one)
        out.append(own | told | {"throttles": [as_json(one) for one in t.throttles]})
    old = now - timedelta(seconds=p["orphan_after_s"])
    for run in t.runs.where(claimed_by=p["worker"]):
        lost = run["claim_id"] not in p["claims"] and run["claimed_at"] < old
        if run["claim_id"] is not None and (run["cancel_requested"] or lost):
            names = ("tenant_id", "claim_id", "cancel_requested")
            more = {"run_id": run["id"], "condemned": False, "now": now, "throttles": None}
            out.append({n: run[n] for n in names} | more)
    return out


def orphans(t: Tables, p: Params) -> list[Row]:
    """Read runs whose owner is dead or was never known."""
    out = []
    for run in t.runs:
        worker = t.workers.get(run["claimed_by"])
        if run["claim_id"] is None or run["id"] in p["skipped"]:
            continue
        if worker is not None and worker["died_at"] is None:
            continue
        out.append(run | _owner(t, run, worker) | {"now": t.clock()})
    return out[: p["batch"]]


def _owner(t: Tables, run: Row, worker: Row | None) -> Row:
    if worker is None:
        return {"worker_name": None, "died_why": None, "late": False, "solo": None}
    others = t.runs.where(claimed_by=run["claimed_by"])
    only = not any(o["claim_id"] not in {None, run["claim_id"]} for o in others)
    return {
        "worker_name": worker["name"],
        "died_why": worker["died_why"],
        "late": run["claimed_at"] > worker["died_at"],
        "solo": worker["concurrency"] == 1 and worker["stopping_at"] is None and only,
    }


# Leadership


def lead(t: Tables, p: Params) -> list[Row]:
    """Become or stay the leader; no row when somebody else leads."""
    now, row = t.clock(), t.leader.get(p["name"])
    mine = {
        "holder": p["holder"],
        "holder_name": p["holder_name"],
        "until": now + timedelta(seconds=p["ttl_s"]),
    }
    if row is None:
        return [{"term": t.leader.insert(mine | {"name": p["name"], "term": 1})["term"]}]
    over = row["until"] < now
    if row["holder"] != p["holder"] and not over:
        return []
    term = row["term"] + (over or row["holder"] != p["holder"])
    return [{"term": t.leader.update(row, mine | {"term": term})["term"]}]


def resign(t: Tables, p: Params) -> list[Row]:
    """Stop leading at once."""
    row = t.leader.get(p["name"])
    if row is not None and (row["holder"], row["term"]) == (p["holder"], p["term"]):
        t.leader.update(row, {"until": t.clock()})
    return []


def lead_check(t: Tables, p: Params) -> list[Row]:
    """Compare the term; no row when it is over."""
    return [{"term": p["term"]}] if leads(t, p["term"]) else []


def leads(t: Tables, term: int) -> bool:
    """Tell whether a term goes on."""
    row = t.leader.get(_LEADER)
    return row is not None and row["term"] == term


STATEMENTS: Final[dict[str, Any]] = {
    "worker_register": worker_register,
    "workers_alive": workers_alive,
    "worker_stopping": worker_stopping,
    "worker_leave": worker_leave,
    "worker_died": worker_died,
    "heartbeat": heartbeat,
    "orphans": orphans,
    "lead": lead,
    "resign": resign,
    "lead_check": lead_check,
}
