"""Children that used up the budget they share with their run: it ends with the same reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.step import CallOutcome
from harness_common.core.stop_reasons import StopReason
from harness_worker.steps.context import StepContext

_CAPS: Final = {str(r).upper(): r for r in (StopReason.TOKEN_BUDGET, StopReason.COST_BUDGET)}


def end_with_children(ctx: StepContext, outcomes: Sequence[CallOutcome]) -> Guidance:
    """End the run when a child has used up what was left of the run's budget for it."""
    del ctx
    for outcome in outcomes:
        reason = _CAPS.get(outcome.error_type or "")
        if reason is not None:
            error = {
                "category": "permanent",
                "code": reason.upper(),
                "message": f"a child used up the budget of this run: {outcome.content[:500]}",
            }
            return Guidance(stop=reason, error=error)
    return NOTHING
