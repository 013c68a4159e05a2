"""What follows from a turn of another framework's object. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from harness_common.core import events as ev
from harness_common.core.ending import cancelled, end, then, within_limits
from harness_common.core.events import Event
from harness_common.core.run import RunState, Status, Transition
from harness_common.core.step import ForeignStepped
from harness_common.core.stop_reasons import StopReason
from harness_common.core.taint import memo_with
from harness_common.core.values import replace


def foreign_stepped(
    counted: RunState,
    result: ForeignStepped,
    calls: tuple[Event, ...],
    touched: Iterable[str],
    now: datetime,
) -> Transition:
    """Record the turn and go on or end. `counted` has the step counted, `calls` are the events of
    the calls that it made.
    """
    nxt = replace(
        counted,
        turn=counted.turn + 1,
        next_kind=result.kind,
        memo=memo_with({**counted.memo, **result.memo}, set(touched)),
        messages=counted.messages + len(result.messages),
        cost_usd=counted.cost_usd + result.cost_usd + sum(o.cost_usd for o in result.outcomes),
        input_tokens=counted.input_tokens
        + result.input_tokens
        + sum(o.input_tokens for o in result.outcomes),
        output_tokens=counted.output_tokens
        + result.output_tokens
        + sum(o.output_tokens for o in result.outcomes),
    )
    told = {"kind": result.kind, "calls": len(result.outcomes), **result.told}
    events = (*calls, Event(ev.STEP_COMPLETED, told, nxt.step))
    done = Transition(nxt, events, result.messages, result.outcomes)
    if counted.cancel_requested:
        return then(done, cancelled(nxt))
    if result.output is not None:
        answered = replace(nxt, output=result.output)
        return then(done, end(answered, Status.SUCCEEDED, StopReason.FINAL_ANSWER))
    too_many = "max_iterations_exceeded" if nxt.turn >= nxt.limits.max_turns else None
    return within_limits(done, now, too_many)
