"""What policy knows in a step: read in each tools step, and in a model step of a tainted run."""

from __future__ import annotations

from collections.abc import Sequence

from harness_common.contracts.tool import Tool, ToolSpec
from harness_common.core.taint import UNTRUSTED
from harness_worker.steps.context import StepContext
from harness_worker.tools.policy_view import PolicyView, held_marks, view_policy
from harness_worker.tools.registry import ToolRegistry


async def policy_of(ctx: StepContext, registry: ToolRegistry) -> PolicyView:
    """Read what policy needs to know in this step."""
    runtime = ctx.runtime
    return await view_policy(
        runtime.db,
        runtime.policies,
        ctx.run,
        ctx.history + ctx.messages,
        _shown(ctx, registry),
        runtime.settings.tool.max_timeout_s,
    )


async def offered(ctx: StepContext, registry: ToolRegistry) -> Sequence[ToolSpec]:
    """Return the tools that the model is shown: without those that taint hides.

    A model step asks policy only when its run has read untrusted content: else nothing is hidden.
    """
    tools = _shown(ctx, registry)
    specs = [tool.spec for tool in tools]
    if UNTRUSTED not in held_marks(ctx.run.state, ctx.history + ctx.messages, tools):
        return specs
    return (await policy_of(ctx, registry)).offered(specs)


def _shown(ctx: StepContext, registry: ToolRegistry) -> list[Tool]:
    return [registry.get(name) for name in ctx.spec.tools if name in registry]
