"""Steps of other frameworks' objects. A framework is imported when its first step comes."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from harness_common.contracts.foreign import LANGGRAPH, OPENAI_AGENTS
from harness_common.core.errors import Permanent
from harness_common.core.step import StepResult
from harness_common.store.foreign import ForeignStore
from harness_worker.frameworks.calls import Calls
from harness_worker.frameworks.turn import Turn, result_of
from harness_worker.steps.context import StepContext
from harness_worker.steps.sampling import sample
from harness_worker.steps.tools import scope_of

_MODULES: Final = {
    LANGGRAPH: ("harness_worker.frameworks.langgraph", "langgraph"),
    OPENAI_AGENTS: ("harness_worker.frameworks.openai_agents", "openai-agents"),
}


async def run(ctx: StepContext) -> StepResult:
    """Run one turn of what the agent names."""
    spec, runtime = ctx.spec, ctx.runtime
    assert spec.foreign is not None
    if ctx.run.overrides.get("recorded"):
        raise Permanent(
            f"a run of kind {spec.kind} cannot be played from the record; fork it from a step",
            code="NOT_RECORDED",
        )
    turn = Turn(
        run=ctx.run,
        spec=spec,
        foreign=spec.foreign,
        conversation=ctx.history + ctx.messages,
        store=ForeignStore(runtime.db, ctx.run.tenant_id, ctx.run),
        calls=Calls(await scope_of(ctx), ctx.calls),
        settings=runtime.settings.frameworks,
        models=runtime.models,
        sample=partial(sample, ctx),
    )
    await turn.calls.settle()
    if turn.calls.waits():
        return result_of(turn, None)
    return await _runner(spec.kind)(turn)


def _runner(kind: str) -> Callable[[Turn], Awaitable[StepResult]]:
    module, extra = _MODULES[kind]
    try:
        found: Callable[[Turn], Awaitable[StepResult]] = importlib.import_module(module).run
    except ImportError as error:
        raise Permanent(
            f"this worker cannot run {kind}: {error}. Install harness[{extra}]",
            code="FRAMEWORK_MISSING",
        ) from error
    return found
