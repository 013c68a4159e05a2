"""The guards of a step, in the order in which they speak. Adding one is its file and a line here.

A guard is a function of what the step saw and gave; what it says is joined with what the others say
and carried to `core.step_rules` with the step's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from harness_common.contracts.model import ChatRequest
from harness_common.core.guidance import Guidance, summed
from harness_common.core.step import CallOutcome, ModelAnswered
from harness_worker.steps.context import StepContext
from harness_worker.steps.handoff import hand_over
from harness_worker.steps.loop_guards import warn_of_budget, watch_answer, watch_rounds
from harness_worker.steps.shared_budget import end_with_children
from harness_worker.steps.stop_when import after_answer as stop_on_answer
from harness_worker.steps.stop_when import after_tools as stop_on_tools

AnswerGuard = Callable[[StepContext, ChatRequest, ModelAnswered], Guidance]
ToolsGuard = Callable[[StepContext, Sequence[CallOutcome]], Guidance]

AFTER_ANSWER: Final[tuple[AnswerGuard, ...]] = (stop_on_answer, watch_answer)
AFTER_TOOLS: Final[tuple[ToolsGuard, ...]] = (
    stop_on_tools,
    end_with_children,
    hand_over,
    watch_rounds,
    warn_of_budget,
)


def after_answer(ctx: StepContext, request: ChatRequest, answer: ModelAnswered) -> Guidance:
    """Return what the guards say of an answer of the model."""
    return summed(guard(ctx, request, answer) for guard in AFTER_ANSWER)


def after_tools(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """Return what the guards say when every call of an answer has ended."""
    return summed(guard(ctx, outcomes) for guard in AFTER_TOOLS)
