"""The node step: all calls of the nodes of a graph whose turn has come, and the plan of the next.

What a run's messages say decides how far it is (`core.graph_log`): a step reads them, makes the
calls that the last one asked for, and says what follows. A step without calls is the first of a run
or of a retry: it plans only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from harness_common.contracts.graph import GraphSpec
from harness_common.contracts.graph_compile import compiled
from harness_common.contracts.output import canonical
from harness_common.core.errors import Permanent
from harness_common.core.events import Event
from harness_common.core.graph import APPROVAL_CALL, MODEL_CALL, WAIT_CALL, Graph, finish_of
from harness_common.core.graph_log import (
    Asked,
    Plan,
    asked_in,
    follow_up,
    plan,
    put_off_until,
    results_message,
    take,
)
from harness_common.core.graph_progress import Progress
from harness_common.core.graph_values import parsed
from harness_common.core.step import CallOutcome, NodesDone, StepResult, ToolsUnknown, ToolsWaiting
from harness_common.core.tool_call import CallStatus
from harness_common.redaction import redactor
from harness_worker.steps.context import StepContext
from harness_worker.steps.node_approval import APPROVAL, GraphGate
from harness_worker.steps.node_calls import GraphCalls, value_of
from harness_worker.steps.node_model import ModelCalls
from harness_worker.steps.node_progress import KeptProgress
from harness_worker.steps.recorded import recorded_outcomes
from harness_worker.steps.tools import scope_of
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.runner import ToolRunner
from harness_worker.tools.validate import in_words, schema_problems

_kept: Final = KeptProgress()
_INLINE_BYTES: Final = 64 * 1024
"""A result of up to this size is a value that the graph can look into; a larger one is an
artifact.
"""


async def run(ctx: StepContext) -> StepResult:
    """Make the calls that are due in a graph run, and decide what follows from them.

    Raises what puts the step off, as model and tools steps do.
    """
    spec = ctx.spec.graph
    if spec is None:
        raise Permanent("the agent has no graph", code="NO_GRAPH")
    graph = compiled(spec)
    said = tuple(ctx.run.state.memo.get("steer", ()))
    key = (ctx.runtime.worker, ctx.run.id)
    progress = _kept.take(key, graph, ctx.messages, said)
    if ctx.calls:
        ctx = replace(ctx, spec=ctx.spec.model_copy(update={"tools": ctx.spec.may_use}))
        result = await _with_calls(ctx, spec, graph, progress)
    else:
        result = _result(plan(progress, ctx.runtime.clock.now()))
    if isinstance(result, NodesDone) and not result.calls:
        return _in_form(ctx, result)
    if isinstance(result, NodesDone):
        _kept.keep(key, len(ctx.messages), result.messages, progress)
    return result


async def _with_calls(
    ctx: StepContext, spec: GraphSpec, graph: Graph, progress: Progress
) -> StepResult:
    asked = asked_in(ctx.messages)
    scope = _wider(await scope_of(ctx))
    runner = ToolRunner(scope, GraphGate(scope, spec, asked))
    calls = [PendingCall.from_row(row) for row in ctx.calls]
    told: tuple[Event, ...] = ()
    runner.expect(call for call in calls if call.name != MODEL_CALL)
    if ctx.run.overrides.get("recorded"):
        outcomes = await _recorded(ctx, runner, calls)
    else:
        models = ModelCalls(ctx, scope, sum(call.name == MODEL_CALL for call in calls))
        made = GraphCalls(runner, models, graph, asked)
        outcomes = await made.run(calls, put_off_until(ctx.messages))
        told = tuple(models.events)
    return _unfinished(outcomes) or _follow(progress, asked, outcomes, scope, told)


def _in_form(ctx: StepContext, done: NodesDone) -> NodesDone:
    """Let a run whose output has not the form that was asked for fail with what is wrong of it."""
    schema = ctx.spec.output_schema
    if schema is None or done.output is None or done.error is not None:
        return done
    value = parsed(done.output, "auto")
    if not (problems := schema_problems(schema, value)):
        return replace(done, output=canonical(value))
    told = redactor.clean(ctx.run.tenant_id, in_words(problems))
    error = {
        "category": "permanent",
        "code": "OUTPUT_NOT_IN_FORM",
        "message": f"the output of the graph does not fit `output_schema`: {told}",
        "detail": {"next": "change `output` of the graph, or relax `output_schema`"},
    }
    return replace(done, output=None, error=error)


def _wider(scope: ToolScope) -> ToolScope:
    """Let a step use what only graphs have, and keep larger results as values."""
    tool = scope.settings.tool
    inline = max(tool.inline_result_bytes, _INLINE_BYTES)
    settings = scope.settings.model_copy(
        update={"tool": tool.model_copy(update={"inline_result_bytes": inline})}
    )
    return replace(
        scope,
        settings=settings,
        result_bytes=None,  # it limits what a model is shown
        registry=scope.registry.with_([APPROVAL]),
        allowed=(*scope.allowed, APPROVAL_CALL),
    )


async def _recorded(
    ctx: StepContext, runner: ToolRunner, calls: Sequence[PendingCall]
) -> list[CallOutcome]:
    """Return what the source of a dry run has on record; a time to wait for is past."""
    outcomes = list[CallOutcome]()
    for call, old in zip(calls, await recorded_outcomes(ctx), strict=True):
        if call.name == WAIT_CALL:
            done = replace(old, status=CallStatus.SUCCEEDED, error_type=None, content="(dry run)")
            outcomes.append(done)
        else:
            outcomes.append(old if call.name == MODEL_CALL else runner.outcomes.reread(call, old))
    return outcomes


def _unfinished(outcomes: Sequence[CallOutcome]) -> StepResult | None:
    """Return what the step waits for; None when all its calls have ended."""
    unknown = tuple(o.index for o in outcomes if o.status is CallStatus.UNKNOWN)
    if unknown:
        return ToolsUnknown(tuple(o for o in outcomes if o.wait is None), unknown)
    if any(o.wait is not None for o in outcomes):
        return ToolsWaiting(tuple(outcomes))
    return None


def _follow(
    progress: Progress,
    asked: Sequence[Asked],
    outcomes: Sequence[CallOutcome],
    scope: ToolScope,
    told: tuple[Event, ...],
) -> NodesDone:
    values = [value_of(outcome) for outcome in outcomes]
    take(progress, asked, values)
    done = _result(follow_up(progress, scope.clock()))
    sampled = sum(o.name == MODEL_CALL and finish_of(o.error_type) is not None for o in outcomes)
    return replace(
        done,
        outcomes=tuple(outcomes),
        messages=(results_message(values), *done.messages),
        events=(*told, *done.events),
        sampled=sampled,
    )


def _result(made: Plan) -> NodesDone:
    return NodesDone(
        (), (made.message,), made.events, made.calls, error=made.error, output=made.output
    )
