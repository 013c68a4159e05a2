"""Step kinds by name. A new kind is its file and a line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from harness_common.contracts.foreign import KINDS
from harness_common.core.step import COMPACT, MODEL, NODE, TOOLS, StepResult
from harness_worker.steps import compact, foreign, model, node, tools
from harness_worker.steps.context import StepContext

StepFunction = Callable[[StepContext], Awaitable[StepResult]]

STEPS: Final[Mapping[str, StepFunction]] = {
    MODEL: model.run,
    TOOLS: tools.run,
    COMPACT: compact.run,
    NODE: node.run,
    **dict.fromkeys(KINDS, foreign.run),
}
