"""The tools of one step: those of the worker and of the tenant, and the agents among them."""

from __future__ import annotations

from harness_common.core.handoff import is_agent_tool
from harness_worker.steps.context import StepContext
from harness_worker.tools.agents import agent_tools
from harness_worker.tools.registry import ToolRegistry


async def registry_of(ctx: StepContext) -> ToolRegistry:
    """Return a registry in which every tool of the acting agent is, as far as it exists."""
    runtime, run, names = ctx.runtime, ctx.run, ctx.spec.tools
    plain = [name for name in names if not is_agent_tool(name)]
    registry = await runtime.catalog.registry(run.tenant_id, plain)
    if len(plain) == len(names):
        return registry
    left = ctx.spec.loop_guards.max_handoffs - run.acting.hops
    agents = await agent_tools(runtime.db, run.tenant_id, names, handoffs_left=left)
    return registry.with_(agents)
