"""The tools of one step: those of the worker and of the tenant, and the agents among them."""

from __future__ import annotations

from harness_common.core.handoff import AGENT_TOOL, TRANSFER
from harness_worker.steps.context import StepContext
from harness_worker.tools.agents import agent_tools
from harness_worker.tools.registry import ToolRegistry


async def registry_of(ctx: StepContext) -> ToolRegistry:
    """Return a registry in which every tool of the acting agent is, as far as it exists.

    A declared hand-off goes before a tool of the same name; without one, `transfer_to_savings` is a
    tool like any other.
    """
    runtime, run, names = ctx.runtime, ctx.run, ctx.spec.tools
    transfers = {f"{TRANSFER}{agent}" for agent in ctx.spec.handoffs}
    others = [name for name in names if name in transfers or name.startswith(AGENT_TOOL)]
    plain = [name for name in names if name not in others]
    registry = await runtime.catalog.registry(run.tenant_id, plain)
    if not others:
        return registry
    left = ctx.spec.loop_guards.max_handoffs - run.acting.hops
    agents = await agent_tools(runtime.db, run.tenant_id, others, handoffs_left=left)
    return ToolRegistry(agents).with_(registry)
