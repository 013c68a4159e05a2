"""The tools of one step: of the worker, of the tenant and of the run's client, and the agents among
them.
"""

from __future__ import annotations

from harness_common.contracts.request_options import options_of
from harness_common.core.handoff import AGENT_TOOL, TRANSFER
from harness_worker.steps.context import StepContext
from harness_worker.tools.agents import agent_tools
from harness_worker.tools.client_tool import client_tool
from harness_worker.tools.registry import ToolRegistry


async def registry_of(ctx: StepContext) -> ToolRegistry:
    """Return a registry in which every tool of the acting agent is, as far as it exists.

    A declared hand-off goes before a tool of the same name; without one, `transfer_to_savings` is a
    tool like any other. A client's tool never stands for one of this worker: a name that only the
    client declared leads to the client, whatever the worker holds under it.
    """
    runtime, run, names = ctx.runtime, ctx.run, ctx.spec.tools
    transfers = {f"{TRANSFER}{agent}" for agent in ctx.spec.handoffs}
    agents = [name for name in names if name in transfers or name.startswith(AGENT_TOOL)]
    options = options_of(run.overrides)
    of_client = options.names if options is not None else frozenset[str]()
    plain = [name for name in names if name not in agents and name not in of_client]
    registry = await runtime.catalog.registry(run.tenant_id, plain)
    if options is not None and options.tools:
        mine = registry.view(name for name in plain if name in registry)
        registry = mine.with_(client_tool(tool) for tool in options.tools)
    if not agents:
        return registry
    left = ctx.spec.loop_guards.max_handoffs - run.acting.hops
    found = await agent_tools(runtime.db, run.tenant_id, agents, handoffs_left=left)
    return ToolRegistry(found).with_(registry)
