"""What watches the steps: each guard says what it found as a `Guidance`. Here they are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from harness_common.contracts.model import ChatRequest, ChatResult
from harness_common.core.guidance import Guidance, summed
from harness_worker.steps.context import StepContext

AfterAnswer = Callable[[StepContext, ChatRequest, ChatResult], Guidance]

AFTER_ANSWER: Final[tuple[AfterAnswer, ...]] = ()
"""Asked about every answer, as its contract has read it (`steps.contract`)."""


def after_answer(ctx: StepContext, request: ChatRequest, answer: ChatResult) -> Guidance:
    """Return what the guards say of an answer of the model."""
    return summed(guard(ctx, request, answer) for guard in AFTER_ANSWER)
