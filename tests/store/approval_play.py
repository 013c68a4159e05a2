"""Runs that wait for approvals, played without a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from harness_common.core.approval import digest
from harness_common.core.run import Status
from harness_common.core.step import CallOutcome, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from tests.store.play import Play, say

SCHEMA = json_codec.dumps_text({"type": "object"})


def asks(index: int, *, in_s: float = 3600, step: int = 2, **more: Any) -> CallOutcome:
    """Build a call that asks for approval."""
    until = datetime.now(UTC) + timedelta(seconds=in_s)
    row = {
        "id": uuid4(), "step": step, "idx": index, "digest": digest("pay", {"i": index}),
        "tool": "pay", "tool_version": "1", "policy_version": "p1", "effect": "write",
        "arguments": json_codec.dumps_text({"i": index}), "input_schema": SCHEMA,
        "shown": {"risk": "high"}, "approver_roles": ["approver"], "four_eyes": False,
        "started_by": "key_ann", "expires_at": until, **more,
    }  # fmt: skip
    about = {"approval": f"appr_{row['id'].hex}", "tool": "pay", "digest": row["digest"]}
    wait = Wait(index, "approval", until, about, row)
    return CallOutcome(
        index, f"call_{index}", "pay", CallStatus.AWAITING_APPROVAL, "approval", wait=wait
    )


async def waiting(play: Play, *calls: CallOutcome, run_id: UUID | None = None) -> UUID:
    """Play a run to where it waits for these approvals."""
    run_id = run_id or await play.start()
    await play.step(run_id, say(tools=["pay"] * len(calls)))
    applied = await play.step(run_id, ToolsWaiting(calls))
    assert applied.run.state.status is Status.WAITING_APPROVAL
    return run_id
