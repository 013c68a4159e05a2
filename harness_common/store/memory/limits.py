"""What providers and tools have refused: throttles of scopes, and breakers of tools."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final

from harness_common.store.connection import Row
from harness_common.store.memory.tables import Params, Tables


def throttles_live(t: Tables, p: Params) -> list[Row]:
    """Read the throttles that hold now."""
    now = t.clock()
    ended = now - timedelta(seconds=p["ends_after_s"])
    names = ("scope", "until", "interval_s", "hits", "updated_at")
    return [
        {n: row[n] for n in names} | {"now": now}
        for row in t.throttles
        if max(row["next_at"], row["until"]) > ended
    ]


def throttle_hit(t: Tables, p: Params) -> list[Row]:
    """Pause a scope that refused a call; one made after the pause known before slows its pace."""
    now = t.clock()
    until = now + timedelta(seconds=p["wait_s"])
    own_s = None if p["per_s"] is None else p["slack"] / p["per_s"]
    row = t.throttles.get(p["scope"])
    if row is None:
        row = t.throttles.insert(
            {
                "scope": p["scope"],
                "until": until,
                "next_at": until,
                "interval_s": max(p["min_s"], p["start_s"] if own_s is None else own_s),
                "limit_per_s": p["per_s"],
                "since": p["called_at"],
                "updated_at": now,
            }
            | {n: p[n] for n in ("code", "reason", "hits")}
        )
        return [row | {"now": now}]
    counts = p["hits"] > 0
    anew = counts and p["called_at"] >= row["until"]
    limit = row["limit_per_s"] if p["per_s"] is None else p["per_s"]
    changes: Row = {
        "interval_s": _slower(row, p, own_s, limit, anew=anew),
        "limit_per_s": limit,
        "hits": row["hits"] + anew,
        "updated_at": now,
    }
    if counts:
        changes |= {
            "until": _longest(row["until"], until),
            "code": p["code"],
            "reason": p["reason"],
        }
    if anew:
        changes["next_at"] = until
    return [t.throttles.update(row, changes) | {"now": now}]


def _longest(old: datetime, new: datetime) -> datetime:
    return max(old, new)


def _slower(row: Row, p: Params, own_s: float | None, limit: float | None, *, anew: bool) -> float:
    pace_s: float = row["interval_s"]
    if not anew:
        return pace_s if own_s is None else max(pace_s, own_s)
    if limit is None:
        return min(float(p["max_s"]), pace_s * float(p["slower"]))
    own_s = float(p["slack"]) / limit
    return min(4 * own_s, max(own_s, pace_s * float(p["slower_known"])))


def throttle_reserve(t: Tables, p: Params) -> list[Row]:
    """Give out the next slots of a throttled scope, one interval apart, up to the horizon."""
    row, now = t.throttles.get(p["scope"]), t.clock()
    if row is None:
        return []
    opens, first = max(row["until"], now), max(row["next_at"], row["until"], now)
    own_s = 0.0 if row["limit_per_s"] is None else p["slack"] / row["limit_per_s"]
    pace_s = max(p["min_s"], own_s, row["interval_s"] * p["faster"] ** p["worked"])
    room = 1 + math.floor((p["horizon_s"] - (first - opens).total_seconds()) / pace_s)
    dealt = min(p["n"], max(0, room))
    next_at = first + timedelta(seconds=dealt * pace_s)
    changes = {"interval_s": pace_s, "next_at": next_at, "updated_at": now}
    return [t.throttles.update(row, changes) | {"first": first, "dealt": dealt, "now": now}]


def breakers_live(t: Tables, p: Params) -> list[Row]:
    """Read the breakers that are open now."""
    del p
    return list(t.tool_breakers.where(state="open"))


def breaker_probe(t: Tables, p: Params) -> list[Row]:
    """Let one call try a tool whose breaker has been open long enough."""
    row, now = t.tool_breakers.get(p["tenant_id"], p["tool"]), t.clock()
    if row is None or row["state"] != "open":
        return []
    mine = row["until"] <= now and (row["probe_until"] is None or row["probe_until"] <= now)
    if mine:
        until = now + timedelta(seconds=p["hold_s"])
        changes = {"probe_id": p["probe_id"], "probe_until": until, "updated_at": now}
        row = t.tool_breakers.update(row, changes)
    return [row | {"mine": mine}]


def breaker_close(t: Tables, p: Params) -> list[Row]:
    """Close a breaker whose probe went well."""
    row = t.tool_breakers.get(p["tenant_id"], p["tool"])
    if row is None or row["state"] != "open" or row["probe_id"] != p["probe_id"]:
        return []
    t.tool_breakers.delete(row)
    return [{"tool": row["tool"], "now": t.clock()}]


def breaker_fail(t: Tables, p: Params) -> list[Row]:
    """Count faults of a tool; enough of them within a window open its breaker."""
    now = t.clock()
    row = t.tool_breakers.get(p["tenant_id"], p["tool"])
    if row is None:
        trips = _trips(p, p["failures"], p["successes"])
        row = t.tool_breakers.insert(
            {n: p[n] for n in ("tenant_id", "tool", "failures", "successes", "reason")}
            | {"state": "closed"}
        )
        changes = _opened(t, p, opens=1) | {"opened_at": now} if trips else {}
    else:
        changes = _counted(t, p, row)
    row = t.tool_breakers.update(row, changes | {"updated_at": now})
    return [row | {"opened": row["opened_by"] == p["token"]}]


def _counted(t: Tables, p: Params, row: Row) -> Row:
    now = t.clock()
    was_open = row["state"] == "open"
    fresh = not was_open and row["window_at"] < now - timedelta(seconds=p["window_s"])
    failures = (0 if fresh else row["failures"]) + p["failures"]
    successes = (0 if fresh else row["successes"]) + p["successes"]
    out: Row = {"failures": failures, "successes": successes}
    if fresh:
        out["window_at"] = now
    if was_open and row["probe_id"] is not None and row["probe_id"] == p["probe_id"]:
        return out | _opened(t, p, opens=row["opens"] + 1, twice=row["opens"])
    if was_open:
        return out
    out["reason"] = p["reason"]
    if _trips(p, failures, successes):
        out |= _opened(t, p, opens=1) | {"opened_at": now}
    return out


def _trips(p: Params, failures: int, successes: int) -> bool:
    return bool(failures >= p["limit"] and failures >= p["share"] * (failures + successes))


def _opened(t: Tables, p: Params, *, opens: int, twice: int | None = None) -> Row:
    open_s = p["open_s"]
    if twice is not None:
        open_s = min(p["open_max_s"], open_s * 2 ** min(twice, 20))
    return {
        "state": "open",
        "opens": opens,
        "opened_by": p["token"],
        "until": t.clock() + timedelta(seconds=open_s),
        "probe_id": None,
        "probe_until": None,
        "reason": p["reason"],
    }


STATEMENTS: Final[dict[str, Any]] = {
    "throttles_live": throttles_live,
    "throttle_hit": throttle_hit,
    "throttle_reserve": throttle_reserve,
    "breakers_live": breakers_live,
    "breaker_probe": breaker_probe,
    "breaker_close": breaker_close,
    "breaker_fail": breaker_fail,
}
