"""The tools of one step: those that the agent declares, and those that the run's client brought."""

from __future__ import annotations

from harness_common.contracts.request_options import options_of
from harness_worker.steps.context import StepContext
from harness_worker.tools.client_tool import client_tool
from harness_worker.tools.registry import ToolRegistry


async def registry_of(ctx: StepContext) -> ToolRegistry:
    """Return a registry in which the step finds the tools it may use.

    A client's tool never stands for one of this worker: a name that only the client declared leads
    to the client, whatever the worker holds under it.
    """
    catalog, tenant_id = ctx.runtime.catalog, ctx.run.tenant_id
    options = options_of(ctx.run.overrides)
    if options is None or not options.tools:
        return await catalog.registry(tenant_id, ctx.spec.tools)
    own = [name for name in ctx.spec.tools if name not in options.names]
    found = await catalog.registry(tenant_id, own)
    return found.view(n for n in own if n in found).with_(client_tool(t) for t in options.tools)
