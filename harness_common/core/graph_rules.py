"""What follows from a step of a graph run. The plan itself is the worker's (`core.graph_log`)."""

from __future__ import annotations

from datetime import datetime

from harness_common.core import events as ev
from harness_common.core.ending import cancelled, end, then, within_limits
from harness_common.core.events import Event
from harness_common.core.graph import MODEL_CALL, finish_of
from harness_common.core.message import Json
from harness_common.core.run import RunState, Status, Transition
from harness_common.core.step import NODE, CallOutcome, NodesDone
from harness_common.core.stop_reasons import StopReason
from harness_common.core.values import replace


def nodes_done(
    state: RunState, done: NodesDone, told: tuple[Event, ...], number: int, now: datetime
) -> Transition:
    """Record a step of a graph and go on with the next, or end. `state` counts the step already;
    `told` is what there is to say of its calls.
    """
    outcomes = done.outcomes
    nxt = replace(
        state,
        next_kind=NODE,
        turn=state.turn + done.sampled,
        messages=state.messages + len(done.messages),
        cost_usd=state.cost_usd + sum(o.cost_usd for o in outcomes),
        input_tokens=state.input_tokens + sum(o.input_tokens for o in outcomes),
        output_tokens=state.output_tokens + sum(o.output_tokens for o in outcomes),
    )
    events = (
        *told,
        *(_answered(o, number) for o in outcomes if _is_answer(o)),
        *(Event(e.type, e.payload, number) for e in done.events),
        Event(ev.STEP_COMPLETED, {"kind": NODE, "calls": len(outcomes)}, number),
    )
    recorded = Transition(nxt, events, done.messages, outcomes, proposed=done.calls > 0)
    if nxt.cancel_requested:
        return then(recorded, cancelled(nxt))
    if done.error is not None:
        used_up = within_limits(recorded, now)  # a cap that is used up says more than its node
        failed = end(replace(nxt, error=done.error), Status.FAILED, StopReason.NODE_FAILED)
        return used_up if used_up is not recorded else then(recorded, failed)
    if not done.calls:
        finished = replace(nxt, output=done.output)
        return then(recorded, end(finished, Status.SUCCEEDED, StopReason.FINAL_ANSWER))
    samples = any(use.name == MODEL_CALL for use in recorded.proposal.tool_uses())
    over = StopReason.MAX_ITERATIONS if samples and nxt.turn >= nxt.limits.max_turns else None
    return within_limits(recorded, now, over)


def _is_answer(outcome: CallOutcome) -> bool:
    return outcome.name == MODEL_CALL and finish_of(outcome.error_type) is not None


def _answered(outcome: CallOutcome, number: int) -> Event:
    """Tell of a model node's answer what is told of any model answer."""
    payload: dict[str, Json] = {
        "call": f"{number}.{outcome.index}",
        "model": outcome.served_by,
        "finish": finish_of(outcome.error_type),
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cost_usd": outcome.cost_usd,
        "tools": [],
    }
    if outcome.restarts:
        payload["restarts"] = outcome.restarts
    if (outcome.served_by or "").startswith("scripted/"):
        payload["scripted"] = True
    return Event(ev.MODEL_ANSWERED, payload, number)
