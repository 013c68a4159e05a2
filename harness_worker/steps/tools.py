"""The tools step: all calls of one answer. Reads go side by side, writes one after another, in the
order asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from harness_common.contracts.flow import conforming
from harness_common.contracts.skill import pins_in
from harness_common.core.step import CallOutcome, StepResult, ToolsDone, ToolsUnknown, ToolsWaiting
from harness_common.core.tokens import BYTES_PER_TOKEN
from harness_common.core.tool_call import CallStatus
from harness_worker.steps.context import StepContext
from harness_worker.steps.guardrails import Rails
from harness_worker.steps.guards import after_tools
from harness_worker.steps.loop_guards import refused
from harness_worker.steps.memories import memory_of
from harness_worker.steps.policy import policy_of
from harness_worker.steps.recorded import recorded_outcomes
from harness_worker.steps.registry import registry_of
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.keeper import Keeper
from harness_worker.tools.runner import ToolRunner
from harness_worker.tools.twins import answered_as, twins


async def run(ctx: StepContext) -> StepResult:
    """Run every call that the last answer asked for and that the ledger does not hold yet."""
    runner = ToolRunner(await scope_of(ctx))
    calls = [PendingCall.from_row(row) for row in ctx.calls]
    runner.expect(calls)
    if ctx.run.overrides.get("recorded"):
        pairs = zip(calls, await recorded_outcomes(ctx), strict=True)
        return await _done(ctx, tuple(runner.outcomes.reread(call, old) for call, old in pairs))
    return await _run_calls(ctx, runner, calls)


async def scope_of(ctx: StepContext) -> ToolScope:
    """Put together what the calls of a step are run with."""
    runtime, run_ = ctx.runtime, ctx.run
    registry = await registry_of(ctx)
    return ToolScope(
        db=runtime.db,
        blobs=runtime.blobs,
        registry=registry,
        settings=runtime.settings,
        clock=runtime.clock.now,
        threads=runtime.threads,
        run=run_,
        allowed=ctx.spec.tools,
        step=ctx.number,
        started_at=ctx.started_at,
        held=ctx.held,
        live=runtime.live,
        bell=runtime.bell,
        breakers=runtime.breakers,
        policy=await policy_of(ctx, registry),
        sandbox=runtime.sandbox,
        memory=memory_of(ctx),
        skills=await runtime.skills.load(runtime.db, run_.tenant_id, pins_in(run_.overrides)),
        secrets=runtime.secrets,
        calls=Counter(row["name"] for row in ctx.calls),
        result_bytes=ctx.spec.context.result_tokens * BYTES_PER_TOKEN,
    )


async def _run_calls(
    ctx: StepContext, runner: ToolRunner, calls: Sequence[PendingCall]
) -> StepResult:
    """Run calls in the order asked; what the first of equal writes gave answers the others."""
    same_as = twins(calls, runner.tool_of)
    outcomes = refused(ctx, calls)
    keeper = Keeper(runner.scope) if len(calls) > 1 else None
    try:
        allowed = [call for call in calls if call.index not in outcomes]
        for is_write, group in groupby(allowed, runner.is_write):
            if not is_write:
                await _side_by_side(runner, list(group), outcomes, keeper)
                continue
            for call in group:
                if (first := same_as.get(call.index)) is None:
                    outcomes[call.index] = await runner.run(call)
                elif (said := answered_as(call, outcomes[first], ctx.number)) is not None:
                    outcomes[call.index] = said
                if _has_unknown(outcomes):
                    break
            if _has_unknown(outcomes):
                break
    finally:
        if keeper is not None:
            await keeper.close()
    return await _result(ctx, [outcomes[call.index] for call in calls if call.index in outcomes])


def _has_unknown(outcomes: Mapping[int, CallOutcome]) -> bool:
    return any(o.status is CallStatus.UNKNOWN for o in outcomes.values())


async def _side_by_side(
    runner: ToolRunner,
    calls: list[PendingCall],
    outcomes: dict[int, CallOutcome],
    keeper: Keeper | None,
) -> None:
    """Run calls at the same time, so many at most; when one raises, the others are stopped and
    awaited first.
    """
    slots = asyncio.Semaphore(runner.scope.settings.tool.parallel_reads)

    async def one(call: PendingCall) -> None:
        async with slots:
            outcomes[call.index] = outcome = await runner.run(call)
        if keeper is not None:
            keeper.add(outcome)

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _result(ctx: StepContext, outcomes: list[CallOutcome]) -> StepResult:
    outcomes = [o if o.wait is not None else conforming(o) for o in outcomes]
    ended = tuple(o for o in outcomes if o.wait is None)
    unknown = tuple(o.index for o in outcomes if o.status is CallStatus.UNKNOWN)
    if unknown:
        return ToolsUnknown(ended, unknown)
    if any(o.wait is not None for o in outcomes):
        return ToolsWaiting(tuple(outcomes))
    return await _done(ctx, ended)


async def _done(ctx: StepContext, outcomes: tuple[CallOutcome, ...]) -> ToolsDone:
    """Return the end of the step with what the guards say of it; what judges of a run's output have
    cost goes with the last call.
    """
    rails = Rails(ctx)
    said = await rails.result(after_tools(ctx, outcomes))
    return ToolsDone((*outcomes[:-1], *map(rails.with_costs, outcomes[-1:])), said)
