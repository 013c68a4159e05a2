"""Calls that ended because they need a person, and are made again with the answer (`NeedInput`).

What they keep is in the ledger before the run begins to wait. A process that dies in between leaves
a call as it was: a read is made anew, a write is unknown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from harness_common.contracts.tool import NeedInput
from harness_common.core.errors import Invalid, LostOwnership
from harness_common.core.step import Wait
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.connection import run_sql
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_json_text
from harness_worker.tools.call import Ended, PendingCall, ToolScope

_MAX_KEPT_BYTES: Final = 256 * 1024


async def keep(scope: ToolScope, call: PendingCall, need: NeedInput) -> dict[str, Any]:
    """Write down what the call needs and what it is to be made again with; returns it.

    Raises `LostOwnership` when the run is another's by now.
    """
    kept = {"state": need.state, "question": need.question, "choices": list(need.choices)}
    text = json_codec.dumps_text(kept)
    if len(text.encode()) > _MAX_KEPT_BYTES:
        raise Invalid(
            f"the tool keeps {len(text.encode())} bytes for its next attempt, more than "
            f"{_MAX_KEPT_BYTES}",
            code="BAD_RESULT",
        )
    owner = {"fence": scope.run.fence, "claim_id": scope.run.claim_id}
    async with scope.db.connection() as conn:
        key = await writing_key(conn, scope.run.tenant_id, scope.db.timeout_s)
        params = scope.key(call.index) | owner | {"kept": seal_json_text(key, text)}
        written = await run_sql(conn, "call_needs", params, scope.db.timeout_s)
    if not written:
        raise LostOwnership("another claim owns the run", run_id=str(scope.run.id))
    return kept


def asking(call: PendingCall, kept: dict[str, Any], until: datetime) -> Ended:
    """Return a call that waits for its answer, which has a time limit always: a write without one
    would look as if its process had died.
    """
    about = {"question": kept["question"], "choices": kept["choices"], "call_again": True}
    wait = Wait(call.index, "input", until, about)
    return Ended(CallStatus.RUNNING, wait.kind, wait=wait)


def open_question(call: PendingCall, now: datetime) -> Ended | None:
    """Return how a call whose question is unanswered goes on waiting, or that its time is over;
    None for a call that may be made.
    """
    if call.kept is None or call.answer is not None or call.resume_at is None:
        return None
    if call.resume_at > now:
        return asking(call, call.kept, call.resume_at)
    text = f"Tool {call.name} failed (INPUT_TIMEOUT): nobody answered in time"
    return Ended(CallStatus.FAILED, text, "INPUT_TIMEOUT")
