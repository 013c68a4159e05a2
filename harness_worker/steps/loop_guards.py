"""What the loop guards look at in a step: the calls as they were made, what is left of a budget.

The guards themselves are pure (`core.loop_guard`, `core.give_up`, `core.references`,
`core.budget_guard`); an agent's `loop_guards` turns each of them on or off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from harness_common.contracts.model import ChatRequest
from harness_common.core import events as ev
from harness_common.core.budget_guard import warn
from harness_common.core.call_trace import Trace, trace
from harness_common.core.denials import is_denied
from harness_common.core.events import Event
from harness_common.core.give_up import ask_to_go_on
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.loop_guard import REPEATED_CALL, last_result, repeated_failures, watch
from harness_common.core.references import RESULT_NOT_READY, told, unresolved
from harness_common.core.step import CallOutcome, ModelAnswered
from harness_common.core.tool_call import CallStatus
from harness_worker.steps.context import StepContext
from harness_worker.tools.call import PendingCall

_BLOCKED: Final = frozenset({REPEATED_CALL, RESULT_NOT_READY})
_WAITING_TOOLS: Final = frozenset({"wait", "ask_user"})


def refused(ctx: StepContext, calls: Sequence[PendingCall]) -> dict[int, CallOutcome]:
    """Return the calls that are not to be made, by index, with what the model is told of each.

    The same for every attempt at the step: what the run remembers does not change within one.
    """
    settings = ctx.spec.loop_guards
    fresh = [c for c in calls if c.status is CallStatus.PROPOSED and c.attempt == 0]
    out: dict[int, CallOutcome] = {}
    if settings.references:
        ids = {c.index: c.tool_use_id for c in calls}
        for call in fresh:
            others = [use_id for index, use_id in ids.items() if index != call.index]
            if found := unresolved(call.arguments, others):
                out[call.index] = _rejected(call, told(call.name, found), RESULT_NOT_READY)
    asked = [(c.name, c.arguments) for c in fresh]
    for i in repeated_failures(ctx.run.state.memo, asked, settings.rules()):
        text = (
            f"Tool {fresh[i].name} was not run: this same call has failed in the same way twice in "
            "a row. Change what made it fail, or do something else."
        )
        out[fresh[i].index] = _rejected(fresh[i], text, REPEATED_CALL)
    return out


def _rejected(call: PendingCall, text: str, error_type: str) -> CallOutcome:
    return CallOutcome(
        call.index, call.tool_use_id, call.name, CallStatus.REJECTED, text, error_type
    )


def watch_rounds(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """Let the guards over rounds of calls look at this one.

    Not at one in which all was denied: `core.denials` counts those, and says what is wrong.
    """
    if outcomes and all(map(is_denied, outcomes)):
        return NOTHING
    rows = {row["idx"]: row for row in ctx.calls}
    traces = [_trace(ctx, rows[o.index], o) for o in outcomes]
    blocked = tuple(
        Event(
            ev.GUARD_BLOCKED,
            {"call": f"{ctx.number}.{o.index}", "tool": o.name, "why": o.error_type},
            ctx.number,
        )
        for o in outcomes
        if o.error_type in _BLOCKED
    )
    names = [o.name for o in outcomes]
    found = watch(ctx.run.state.memo, traces, names, ctx.spec.loop_guards.rules(), ctx.number)
    return Guidance(
        found.messages, blocked + found.events, found.memo, stop=found.stop, error=found.error
    )


def _trace(ctx: StepContext, row: Mapping[str, Any], outcome: CallOutcome) -> Trace:
    arguments = row["arguments"]
    if outcome.error_type == REPEATED_CALL:
        same = last_result(ctx.run.state.memo, outcome.name, arguments)
        if same is not None:
            return same
    return trace(
        outcome.name,
        arguments,
        content=outcome.content,
        error_type=outcome.error_type,
        failed=outcome.status is not CallStatus.SUCCEEDED,
        waited=outcome.name in _WAITING_TOOLS or row["resume_at"] is not None,
        has_effect=(outcome.effect or "read") != "read",
    )


def warn_of_budget(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """Warn of what is nearly used up, now that these calls have cost what they cost."""
    state, at = ctx.run.state, ctx.spec.loop_guards.warn_at
    if at is None:
        return NOTHING
    tokens = state.input_tokens + state.output_tokens
    return warn(
        state.memo,
        state.limits,
        turns=state.turn,
        tokens=tokens + sum(o.input_tokens + o.output_tokens for o in outcomes),
        cost_usd=state.cost_usd + sum(o.cost_usd for o in outcomes),
        at=at,
        step=ctx.number,
    )


def watch_answer(ctx: StepContext, request: ChatRequest, answer: ModelAnswered) -> Guidance:
    """Ask a model that gives up at once to go on."""
    del request
    is_final = answer.finish in {"stop", "tool_calls"} and not answer.message.has_tool_uses()
    if not is_final or not ctx.spec.loop_guards.give_up or ctx.is_last_answer:
        return NOTHING
    return ask_to_go_on(ctx.run.state.memo, ctx.messages, answer.message, ctx.number)
