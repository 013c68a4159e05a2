"""What the scheduler's loops read and write: slots, timers and doorbells."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.fleet import leads, live_workers
from harness_common.store.memory.runs import is_over, last_runs
from harness_common.store.memory.tables import Params, Tables


def look(t: Tables, p: Params) -> list[Row]:
    """Read what the loops may have to do."""
    now = t.clock()
    queued = list(t.runs.where(status="queued"))
    due = min((r["wake_at"] for r in t.runs if r["wake_at"] is not None), default=None)
    silent = now - timedelta(seconds=p["lease_s"])
    alive = list(live_workers(t))
    fresh = [w for w in alive if w["stopping_at"] is None and w["seen_at"] > silent]
    known = {w["incarnation"] for w in alive}
    slots = list(t.tenant_slots)
    return [
        {
            "due_in_s": None if due is None else (due - now).total_seconds(),
            "queued": any(r["held_for"] is None for r in queued),
            "keyed": any(r["held_for"] == "key" for r in queued),
            "behind": any(r["held_for"] == "session" for r in queued),
            "stale": any(w["seen_at"] < silent for w in alive),
            "orphaned": any(
                r["claim_id"] is not None and r["claimed_by"] not in known for r in t.runs
            ),
            "ungranted": sum(s["granted"] == 0 and s["max_running"] > 0 for s in slots),
            "capacity": sum(w["concurrency"] for w in fresh),
            "granted": sum(s["granted"] for s in slots),
            "all_running": None,
            "forsaken": any(True for _ in _forsaken(t)),
            "queue_age_s": max((w["queue_age_s"] for w in alive), default=0.0),
            "fire_in_s": None,
            "deliver_in_s": None,
            "now": now,
        }
    ]


# Timers


def due(t: Tables, p: Params) -> list[Row]:
    """Read the tenants with runs that wait for a time which has come."""
    found = _waiting(t, t.clock(), p["skipped"])[: p["batch"]]
    return [{"tenant_id": tenant_id} for tenant_id in dict.fromkeys(r["tenant_id"] for r in found)]


def _waiting(t: Tables, now: datetime, skipped: list[UUID]) -> list[Row]:
    found = [
        r
        for r in t.runs
        if r["wake_at"] is not None
        and r["wake_at"] <= now
        and (r["status"] != "running" or _nobody_came(r, now))
        and r["id"] not in skipped
    ]
    return sorted(found, key=lambda r: r["wake_at"])


def _nobody_came(run: Row, now: datetime) -> bool:
    """Tell whether the wall clock of a run that nobody works on is over."""
    deadline = run["limits"].get("deadline")
    late = deadline is not None and datetime.fromisoformat(deadline) <= now
    return late and run["claim_id"] is None


def wake_pick(t: Tables, p: Params) -> list[Row]:
    """Read the runs of one tenant that wait for a time which has come."""
    found = [r for r in _waiting(t, p["now"], p["skipped"]) if r["tenant_id"] == p["tenant_id"]]
    return [r | {"children_done": _children_done(t, r)} for r in found[: p["limit"]]]


def _children_done(t: Tables, run: Row) -> bool:
    mine = {"parent_run_id": run["id"], "parent_step": run["step"] + 1, "finished_at": None}
    return next(t.runs.where(tenant_id=run["tenant_id"], **mine), None) is None


# Admission


def slots_lock(t: Tables, p: Params) -> list[Row]:
    """Tell how many runs of a tenant may still be admitted."""
    slot = t.tenant_slots.get(p["tenant_id"])
    if slot is None:
        return []
    room = min(slot["max_running"], slot["granted"]) - slot["running"]
    return [{"room": room, "now": t.clock()}]


def slots_read(t: Tables, p: Params) -> list[Row]:
    """Read the slots of every tenant that may matter to a round of admission."""
    now, slots = t.clock(), list(t.tenant_slots)
    now_s, lately = now.timestamp(), now - timedelta(minutes=1)
    idle = sum(s["running"] == 0 and s["max_running"] > 0 for s in slots)
    out = []
    for s in sorted(slots, key=lambda s: s["tenant_id"]):
        recent = s["last_admitted_at"] is not None and s["last_admitted_at"] > lately
        busy = s["running"] > 0 or s["granted"] > 0 or s["crowded"] or recent
        if not (busy or s["tenant_id"] in p["waiting"] or len(slots) <= p["few"]):
            continue
        tat = s["starts_tat"]
        names = ("tenant_id", "running", "max_running", "granted", "weight", "starts_per_s")
        out.append(
            {name: s[name] for name in names}
            | {
                "settled_s": s["used_s"],
                "held_s": s["running"] * now_s - s["turn_sum"] if s["turn_sum"] else 0.0,
                "starts_tat_s": None if tat is None else tat.timestamp(),
                "crowded": s["crowded"],
                "recent": recent,
                "idle": idle,
                "all_running": None,
                "all_starts_per_s": None,
                "all_starts_tat_s": None,
                "now_s": now_s,
            }
        )
    return out


def slots_take(t: Tables, p: Params) -> list[Row]:
    """Hold the slots of several tenants."""
    found = (t.tenant_slots.get(tenant_id) for tenant_id in sorted(p["tenants"]))
    names = ("tenant_id", "running", "max_running", "granted")
    return [{n: s[n] for n in names} | {"now": t.clock()} for s in found if s is not None]


def slots_write(t: Tables, p: Params) -> list[Row]:
    """Write what a round of admission decided."""
    for w in json_codec.loads(p["slots"]):
        slot = t.tenant_slots.get(UUID(w["tenant_id"]))
        if slot is not None:
            at = t.clock() if w["given"] else slot["last_admitted_at"]
            changes = {"granted": w["granted"], "crowded": w["crowded"], "last_admitted_at": at}
            t.tenant_slots.update(slot, changes)
    return []


def streams_read(t: Tables, p: Params) -> list[Row]:
    """Read what waits for admission, per tenant, queue and whether it was started before."""
    after = (p["tenant_id"], p["queue"], p["started"])
    streams: dict[tuple[UUID, str, bool], list[Row]] = {}
    for run in t.runs.where(status="queued", held_for=None):
        streams.setdefault((run["tenant_id"], run["queue"], run["started"]), []).append(run)
    free = p["slots"] - sum(slot["running"] for slot in t.tenant_slots)
    bound = min(p["most"], max(0, free)) + 1
    found = []
    for nth, key in enumerate(sorted(k for k in streams if k > after)[: p["streams"]], 1):
        able = sorted((r for r in streams[key] if r["id"] not in p["skipped"]), key=_turn)
        head = (0, _turn(able[0])) if able else (1, (0, t.clock()))
        row = dict(zip(("tenant_id", "queue", "started"), key, strict=True))
        found.append((head, row | {"nth": nth, "waiting": min(len(able), bound)}))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _turn(run: Row) -> tuple[int, Any]:
    return run["priority"], run["queued_at"]


def queue_load(t: Tables, p: Params) -> list[Row]:
    """Read per queue what its live workers can hold, and what runs on it."""
    silent = t.clock() - timedelta(seconds=p["lease_s"])
    alive = [w for w in live_workers(t) if w["stopping_at"] is None and w["seen_at"] > silent]
    total = sum(w["concurrency"] for w in alive)
    load: dict[str, Row] = {}
    for worker in alive:
        for queue in worker["queues"]:
            _of_queue(load, queue, total)["capacity"] += worker["concurrency"]
    for run in t.runs.where(status="running"):
        _of_queue(load, run["queue"], total)["running"] += 1
    return list(load.values())


def _of_queue(load: dict[str, Row], queue: str, total: int) -> Row:
    nothing = {"queue": queue, "capacity": 0, "running": 0, "total": total}
    return load.setdefault(queue, nothing)


def admit_pick(t: Tables, p: Params) -> list[Row]:
    """Pick the next waiting runs of tenants: priority, then age."""
    found: list[Row] = []
    for s in json_codec.loads(p["streams"]):
        of_stream = {"queue": s["queue"], "started": s["started"], "status": "queued"}
        waiting = t.runs.where(tenant_id=UUID(s["tenant_id"]), held_for=None, **of_stream)
        able = sorted((r for r in waiting if r["id"] not in p["skipped"]), key=_turn)
        more = {"rank": s["rank"], "queue_room": s["queue_room"]}
        found += [run | more for run in able[: s["room"]]]
    out, nth = [], dict[tuple[UUID, str], int]()
    for row in sorted(found, key=_turn):
        of_queue = row["tenant_id"], row["queue"]
        nth[of_queue] = nth.get(of_queue, 0) + 1
        if nth[of_queue] <= row["queue_room"]:
            out.append(row | {"nth": nth[of_queue]})
    return sorted(out, key=lambda r: (r["rank"], *_turn(r)))


def starts_charge(t: Tables, p: Params) -> list[Row]:
    """Note until when the starts of tenants are paid for."""
    for paid in json_codec.loads(p["paid"]):
        slot = t.tenant_slots.get(paid["tenant_id"] and UUID(paid["tenant_id"]))
        if slot is not None:
            at = t.clock().fromtimestamp(paid["tat_s"], t.clock().tzinfo)
            t.tenant_slots.update(slot, {"starts_tat": at})
    return []


def release_keys(t: Tables, p: Params) -> list[Row]:
    """Let held runs of concurrency keys go while fewer of their key run or were let go than may."""
    held: dict[tuple[UUID, str], list[Row]] = {}
    for run in t.runs.where(status="queued", held_for="key"):
        held.setdefault((run["tenant_id"], run["concurrency_key"]), []).append(run)
    page = sorted(k for k in held if k > (p["tenant_id"], p["key"]))[: p["keys"]]
    released = 0
    for tenant_id, key in page:
        waiting = sorted(held[tenant_id, key], key=lambda r: r["queued_at"])
        mine = t.runs.where(tenant_id=tenant_id, concurrency_key=key)
        going = [
            r["concurrency_max"]
            for r in mine
            if r["status"] == "running" or (r["status"] == "queued" and r["held_for"] is None)
        ]
        for run in waiting[: p["most"]]:
            going.append(run["concurrency_max"])
            if len(going) > min(going):
                break
            t.runs.update(run, {"held_for": None})
            released += 1
    last = page[-1] if page else (None, None)
    counts = {"released": released, "looked_at": len(page)}
    return [counts | {"tenant_id": last[0], "concurrency_key": last[1]}]


def release_sessions(t: Tables, p: Params) -> list[Row]:
    """Let runs go that waited for those before theirs in the session, which are over."""
    found = [
        r
        for r in t.runs.where(status="queued", held_for="session")
        if (r["tenant_id"], r["prev_run_id"]) > (p["tenant_id"], p["prev"])
    ]
    page = sorted(found, key=lambda r: (r["tenant_id"], r["prev_run_id"]))[: p["most"]]
    released = 0
    for run in page:
        if all(map(is_over, last_runs(t, run, run["prev_run_id"]))):
            held_for = "key" if run["concurrency_key"] is not None else None
            t.runs.update(run, {"held_for": held_for})
            released += 1
    last = page[-1] if page else {"tenant_id": None, "prev_run_id": None}
    counts = {"released": released, "looked_at": len(page)}
    return [counts | {"tenant_id": last["tenant_id"], "prev_run_id": last["prev_run_id"]}]


# Doorbells


def ring(t: Tables, p: Params) -> list[Row]:
    """Note another ring of runs whose doorbell was not answered in time."""
    now = t.clock()
    if not leads(t, p["term"]):
        return []
    unanswered = [
        r
        for r in t.runs.where(status="running", claim_id=None)
        if r["wake_at"] is not None and r["wake_at"] <= now
    ]
    out = []
    for run in sorted(unanswered, key=lambda r: r["wake_at"])[: p["batch"]]:
        again_s = min(p["longest_s"], p["first_s"] * 2 ** min(run["rings"], 16))
        wake_at = now + timedelta(seconds=again_s)
        changes = {"rings": run["rings"] + 1, "rung_at": now, "wake_at": wake_at}
        out.append(t.runs.update(run, changes))
    return out


def ring_all(t: Tables, p: Params) -> list[Row]:
    """Let every unanswered doorbell be rung again now."""
    if not leads(t, p["term"]):
        return []
    runs = [r for r in t.runs.where(status="running", claim_id=None) if r["wake_at"] is not None]
    for run in runs:
        t.runs.update(run, {"wake_at": t.clock(), "rings": 0})
    return [{"due": 1} for _ in runs]


def overdue(t: Tables, p: Params) -> list[Row]:
    """Look again later at claimed runs whose step's time is over although their owner lives."""
    now, known = t.clock(), {w["incarnation"] for w in live_workers(t)}
    if not leads(t, p["term"]):
        return []
    late = [
        r
        for r in t.runs.where(status="running")
        if r["claim_id"] is not None
        and r["claimed_by"] in known
        and r["wake_at"] is not None
        and r["wake_at"] <= now
    ]
    for run in late:
        t.runs.update(run, {"wake_at": now + timedelta(seconds=p["again_s"])})
    names = ("tenant_id", "claimed_by")
    return [{n: r[n] for n in names} | {"run_id": r["id"]} for r in late]


def _forsaken(t: Tables) -> Iterator[tuple[Row, Row]]:
    for run in t.runs.where(finished_at=None, cancel_requested=False):
        parent = t.runs.get(run["tenant_id"], run["parent_run_id"])
        if parent is not None and (parent["cancel_requested"] or parent["finished_at"] is not None):
            yield run, parent


def forsaken(t: Tables, p: Params) -> list[Row]:
    """Read child runs that go on although their parent was asked to stop or has ended."""
    return [
        {
            "tenant_id": run["tenant_id"],
            "run_id": run["id"],
            "parent_run_id": parent["id"],
            "parent_status": parent["status"],
        }
        for run, parent in _forsaken(t)
        if run["id"] not in p["skipped"]
    ][: p["batch"]]


STATEMENTS: Final[dict[str, Any]] = {
    "look": look,
    "due": due,
    "wake_pick": wake_pick,
    "slots_lock": slots_lock,
    "slots_read": slots_read,
    "slots_take": slots_take,
    "slots_take_free": slots_take,
    "slots_write": slots_write,
    "streams_read": streams_read,
    "queue_load": queue_load,
    "admit_pick": admit_pick,
    "starts_charge": starts_charge,
    "release_keys": release_keys,
    "release_sessions": release_sessions,
    "ring": ring,
    "ring_all": ring_all,
    "overdue": overdue,
    "forsaken": forsaken,
}
