"""Equal `write` calls of one answer: a model that asks twice for the same effect means it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.tools.call import PendingCall
from harness_worker.tools.ledger import canonical


def twins(
    calls: Sequence[PendingCall], tool_of: Callable[[PendingCall], Tool | None]
) -> dict[int, int]:
    """Map the index of each call that repeats an earlier one to the index of that.

    Compared are tool, version and arguments as asked for: what a person made of the first (denied,
    edited) is the answer to both. A call that was started once is no repetition.
    """
    first: dict[tuple[str, str, bytes], int] = {}
    found: dict[int, int] = {}
    for call in calls:
        tool = tool_of(call)
        if tool is None or tool.spec.effect is not EffectClass.WRITE or tool.spec.repeatable:
            continue
        key = (call.name, tool.spec.version, canonical(call.asked))
        earlier = first.setdefault(key, call.index)
        if earlier != call.index and call.status is CallStatus.PROPOSED and call.attempt == 0:
            found[call.index] = earlier
    return found


def answered_as(call: PendingCall, first: CallOutcome, step: int) -> CallOutcome | None:
    """Answer a repetition with what the first call gave; None while that is not known."""
    if first.status not in ENDED:
        return None
    source = f"{step}.{first.index}"
    text = (
        f"{first.content}\n[duplicate_of: {source}. The same call was asked for twice in one "
        "answer and was made once.]"
    )
    return replace(
        first,
        index=call.index,
        tool_use_id=call.tool_use_id,
        content=text,
        duration_ms=0.0,
        cost_usd=0.0,
        attempt=call.attempt,
        failed_attempts=(),
        duplicate_of=source,
        recorded=False,
    )
