"""Hand-offs as a guard of the tools step: a transfer that worked changes who acts next."""

from __future__ import annotations

from collections.abc import Sequence

from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.handoff import handed_over
from harness_common.core.step import CallOutcome
from harness_common.core.values import replace
from harness_worker.memory.recall import RECALLED
from harness_worker.steps.context import StepContext


def hand_over(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """Hand the run to the agent that a call of this step names. What it is told of its memory is
    chosen anew: what was chosen is of the memory of the agent before.
    """
    found = handed_over(ctx.run.acting, ctx.spec.handoffs, outcomes, ctx.number)
    if found is NOTHING:
        return NOTHING
    return replace(found, memo={**found.memo, RECALLED: None})
