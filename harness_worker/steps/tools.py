"""The tools step: all calls of one answer. Reads go side by side, writes one after another, in the
order asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import groupby

from harness_common.core.step import CallOutcome, StepResult, ToolsDone, ToolsUnknown, ToolsWaiting
from harness_common.core.tool_call import CallStatus
from harness_worker.steps.context import StepContext
from harness_worker.steps.recorded import recorded_outcomes
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.runner import ToolRunner


async def run(ctx: StepContext) -> StepResult:
    """Run every call that the last answer asked for and that the ledger does not hold yet."""
    runtime, run_ = ctx.runtime, ctx.run
    runner = ToolRunner(
        ToolScope(
            db=runtime.db,
            blobs=runtime.blobs,
            registry=await runtime.catalog.registry(run_.tenant_id, ctx.spec.tools),
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
            secrets=runtime.secrets,
            calls=Counter(row["name"] for row in ctx.calls),
        )
    )
    if ctx.run.overrides.get("recorded"):
        return ToolsDone(await recorded_outcomes(ctx))
    calls = [PendingCall.from_row(row) for row in ctx.calls]
    outcomes: list[CallOutcome] = []
    for is_write, group in groupby(calls, runner.is_write):
        batch = list(group)
        if is_write:
            for call in batch:
                outcomes.append(await runner.run(call))
                if outcomes[-1].status is CallStatus.UNKNOWN:
                    break
        else:
            outcomes.extend(await _side_by_side(runner, batch))
        if any(o.status is CallStatus.UNKNOWN for o in outcomes):
            break
    return _result(outcomes)


async def _side_by_side(runner: ToolRunner, calls: list[PendingCall]) -> list[CallOutcome]:
    """Run calls at the same time; when one raises, the others are stopped and awaited first."""
    tasks = [asyncio.ensure_future(runner.run(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _result(outcomes: list[CallOutcome]) -> StepResult:
    ended = tuple(o for o in outcomes if o.wait is None)
    unknown = tuple(o.index for o in outcomes if o.status is CallStatus.UNKNOWN)
    if unknown:
        return ToolsUnknown(ended, unknown)
    if any(o.wait is not None for o in outcomes):
        return ToolsWaiting(tuple(outcomes))
    return ToolsDone(ended)
