"""Approvals: what a person is asked, and what a person said."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.tables import Params, Tables


def approval_seek(t: Tables, p: Params) -> list[Row]:
    """Read the last approval of a call, an id for a new one, and where the call comes from."""
    key = p["tenant_id"], p["run_id"]
    if t.run_of(p) is None:
        return []
    said = t.messages.of(*key)
    mine = [
        a
        for a in t.approvals.where(tenant_id=p["tenant_id"], run_id=p["run_id"])
        if (a["step"], a["idx"]) == (p["step"], p["idx"])
    ]
    last = max(mine, key=lambda a: a["id"], default=None)
    return [
        {
            "new_id": t.ids(),
            "started_by": starter(t, p),
            "message": max((m["n"] for m in said), default=None),
            "tainted": any(m["trust"] == "untrusted" for m in said),
        }
        | {name: last and last[name] for name in _SOUGHT}
    ]


_SOUGHT: Final = (
    "id", "status", "digest", "tool_version", "policy_version", "arguments", "original_digest",
    "original_arguments", "edited_by", "reason", "decided_by", "decided_role", "expires_at",
)  # fmt: skip


def starter(t: Tables, p: Params) -> str:
    """Return who started the first run above one."""
    row = t.run_of(p)
    assert row is not None
    while (above := t.runs.get(row["tenant_id"], row["parent_run_id"])) is not None:
        row = above
    name: str = row["created_by"]
    return name


def approval_decide(t: Tables, p: Params) -> list[Row]:
    """Write a person's decision about what the person was shown, in time."""
    row = t.approvals.get(p["tenant_id"], p["id"])
    now = t.clock()
    if (
        row is None
        or row["status"] != "pending"
        or row["digest"] != p["shown_digest"]
        or not _in_time(row, now)
    ):
        return []
    changes: Row = {
        "status": p["status"],
        "decided_at": now,
        "decided_by": p["by"],
        "decided_role": p["role"],
        "reason": p["reason"],
        "digest": p["digest"],
    }
    if p["arguments"] is not None:
        first = row["original_digest"] is None
        changes |= {
            "original_digest": row["digest"] if first else row["original_digest"],
            "original_arguments": row["arguments"]
            if row["original_arguments"] is None
            else row["original_arguments"],
            "edited_by": p["by"],
            "arguments": json_codec.loads(p["arguments"]),
        }
    t.approvals.update(row, changes)
    return [{"id": row["id"]}]


def _in_time(row: Row, now: datetime) -> bool:
    return bool(row["expires_at"] > now)


def approval_read(t: Tables, p: Params) -> list[Row]:
    """Read one approval with its run."""
    row = t.approvals.get(p["tenant_id"], p["id"])
    return [] if row is None else [_with_run(t, row)]


def approvals_list(t: Tables, p: Params) -> list[Row]:
    """Read approvals, newest first."""
    found = [
        a
        for a in t.approvals.where(tenant_id=p["tenant_id"])
        if p["status"] in {None, a["status"]}
        and p["run_id"] in {None, a["run_id"]}
        and (p["before"] is None or a["id"] < p["before"])
    ]
    found.sort(key=lambda a: a["id"], reverse=True)
    return [_with_run(t, row) for row in found[: p["limit"]]]


def approvals_inbox(t: Tables, p: Params) -> list[Row]:
    """Read approvals that wait for a person, newest first."""
    return approvals_list(t, {**p, "status": "pending", "run_id": None})


def acting_name(run: Row) -> str:
    """Return the agent under which a run goes on: another than its own after a hand-off."""
    handed: str = (run["memo"].get("acting") or [run["agent_name"]])[0]
    return handed


def _with_run(t: Tables, row: Row) -> Row:
    run = t.runs.get(row["tenant_id"], row["run_id"])
    assert run is not None
    return row | {
        "agent_name": run["agent_name"],
        "acting_name": acting_name(run),
        "run_status": run["status"],
        "run_cancel_requested": run["cancel_requested"],
        "now": t.clock(),
    }


STATEMENTS: Final[dict[str, Any]] = {
    "approval_seek": approval_seek,
    "approval_decide": approval_decide,
    "approval_read": approval_read,
    "approvals_list": approvals_list,
    "approvals_inbox": approvals_inbox,
}
