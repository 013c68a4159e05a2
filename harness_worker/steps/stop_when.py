"""An agent's own conditions for the end of a run, as guards of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from harness_common.contracts.model import ChatRequest
from harness_common.contracts.stop_when import conditions
from harness_common.core import stop_when
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.step import CallOutcome, ModelAnswered
from harness_worker.steps.context import StepContext


def after_answer(ctx: StepContext, request: ChatRequest, answer: ModelAnswered) -> Guidance:
    """End the run by what an answer says that asks for tools; a final one ends it anyway."""
    del request
    goes_on = answer.message.has_tool_uses() or answer.finish == "pause"
    if not ctx.spec.stop_when or not goes_on:
        return NOTHING
    return stop_when.after_answer(conditions(ctx.spec.stop_when), answer.message.text(), ctx.number)


def after_tools(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """End the run by the tools that worked, or by what it has used."""
    if not ctx.spec.stop_when:
        return NOTHING
    state = ctx.run.state
    spent = stop_when.Spent(
        tool_calls=state.memo.get(stop_when.CALLS, 0) + len(outcomes),
        tokens=state.input_tokens
        + state.output_tokens
        + sum(o.input_tokens + o.output_tokens for o in outcomes),
        cost_usd=state.cost_usd + sum(o.cost_usd for o in outcomes),
    )
    said = [m.text() for m in ctx.messages if m.role == "assistant" and m.text()]
    declared = conditions(ctx.spec.stop_when)
    last = said[-1] if said else ""
    return stop_when.after_tools(declared, outcomes, spent, last, ctx.number)
