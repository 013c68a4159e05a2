"""What happened in a run: steps, tool calls, checkpoints, messages, and all of it as a tree."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import CallCursor, LongLimit, NumberCursor, page
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.lineage import LineageView, Relative
from harness_api.schemas.runs import (
    AgentRef,
    AttemptView,
    CheckpointView,
    MessageView,
    RunTree,
    StepCompaction,
    StepTokens,
    StepTool,
    StepView,
    ToolCallView,
    TreeCall,
    TreeStep,
    TreeTurn,
)
from harness_common.core.ids import encode
from harness_common.core.phase import shown
from harness_common.core.run import Status
from harness_common.core.step import MODEL
from harness_common.store.connection import Row
from harness_common.store.lineage import read_lineage
from harness_common.store.run_reads import (
    count_failed_attempts,
    read_answers,
    read_calls_of_steps,
    read_checkpoints,
    read_failed_attempts,
    read_messages,
    read_tool_calls,
    view_run,
)

router = new_router("/v1/runs/{run_id}", "run details")

CanRead = Annotated[Caller, requires("runs:read")]
StepLimit = Annotated[int, Query(ge=1, le=1000, description="Steps a page.")]
_ALL: Final = 1000


def _call(row: Row) -> str:
    return f"{row['step']}.{row['idx']}"


def _worker(row: Row) -> str | None:
    return row["worker_name"] or (encode("worker", row["worker"]) if row["worker"] else None)


def _step(row: Row, answer: dict[str, Any], calls: list[Row], failed: int) -> StepView:
    started, finished = row["started_at"], row["created_at"]
    return StepView(
        step=row["step"],
        kind=row["kind"],
        attempt=max(row["attempt"], failed + 1),
        fence=row["fence"],
        worker=_worker(row),
        started_at=started,
        finished_at=finished,
        ms=round((finished - started).total_seconds() * 1000, 1) if started else None,
        model=answer.get("model"),
        finish=answer.get("finish"),
        first_token_ms=answer.get("first_token_ms"),
        tokens=StepTokens(
            input=answer.get("input_tokens", 0), output=answer.get("output_tokens", 0)
        ),
        cost_usd=answer.get("cost_usd")
        if answer and row["kind"] == MODEL
        else sum(c["cost_usd"] for c in calls),
        scripted=answer.get("scripted", False),
        tools=[
            StepTool(
                call=_call(c),
                tool=c["name"],
                status=c["status"],
                ms=c["duration_ms"],
                error_type=c["error_type"],
            )
            for c in calls
        ],
        compaction=StepCompaction(**{k: answer[k] for k in StepCompaction.model_fields})
        if "covers" in answer
        else None,
    )


def tool_call_view(row: Row, run_id: str) -> ToolCallView:
    """Show an entry of the ledger."""
    return ToolCallView(
        call=_call(row),
        step=row["step"],
        index=row["idx"],
        tool=row["name"],
        arguments=row["arguments"],
        effect=row["effect"],
        status=row["status"],
        attempt=row["attempt"],
        result=row["result"],
        error_type=row["error_type"],
        trust=row["trust"],
        artifacts=row["artifacts"],
        ms=row["duration_ms"],
        cost_usd=row["cost_usd"],
        idempotency_key=f"{run_id}.{_call(row)}",
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        tool_version=row["tool_version"],
        ran_arguments=row["ran_arguments"],
        failed_attempts=row["failed_attempts"] or [],
        duplicate_of=row["duplicate_of"],
        cached_from=row["cached_from"],
        served_by=row["served_by"],
    )


@router.get("/steps", operation_id="listSteps", response_model=Page[StepView])
async def get_steps(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: LongLimit = _ALL,
    cursor: NumberCursor = None,
) -> Page[StepView]:
    """List the committed steps of a run, in order."""
    after = int(cursor or 0)
    db, tenant_id = services.db, caller.tenant_id
    rows = await read_checkpoints(db, tenant_id, run_id, after=after, limit=limit + 1)
    steps = [row["step"] for row in rows[:limit]]
    answers = await read_answers(db, tenant_id, run_id, steps=steps)
    calls = await read_calls_of_steps(db, tenant_id, run_id, steps=steps)
    failed = await count_failed_attempts(db, tenant_id, run_id, steps=steps)

    def show(row: Row) -> StepView:
        step = row["step"]
        return _step(row, answers.get(step, {}), calls.get(step, []), failed.get(step, 0))

    data, next_cursor = page(rows, limit, show, "step")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/tool-calls", operation_id="listToolCalls", response_model=Page[ToolCallView])
async def get_tool_calls(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: LongLimit = _ALL,
    cursor: CallCursor = None,
) -> Page[ToolCallView]:
    """List the tool calls of a run as the ledger has them, in order."""
    step, index = map(int, cursor.split(".")) if cursor else (0, -1)
    rows = await read_tool_calls(
        services.db, caller.tenant_id, run_id, after=(step, index), limit=limit + 1
    )
    shown = encode("run", run_id)
    data, next_cursor = page(rows, limit, lambda row: tool_call_view(row, shown), "step", "idx")
    return Page(data=data, next_cursor=next_cursor)


def _attempt(row: Row) -> AttemptView:
    payload, error = row["payload"], row["payload"].get("error") or {}
    return AttemptView(
        seq=row["seq"],
        step=row["step"],
        attempt=payload.get("attempt", payload.get("failures", 1)),
        kind=payload.get("kind", ""),
        category=error.get("category", ""),
        code=error.get("code", ""),
        message=error.get("message", ""),
        retry_after_s=error.get("retry_after_s"),
        scope=error.get("scope"),
        at=row["at"],
    )


@router.get("/attempts", operation_id="listAttempts", response_model=Page[AttemptView])
async def get_attempts(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: LongLimit = _ALL,
    cursor: NumberCursor = None,
) -> Page[AttemptView]:
    """List the attempts at steps that failed or were put off, in order, with their reasons."""
    after = int(cursor or 0)
    rows = await read_failed_attempts(
        services.db, caller.tenant_id, run_id, after=after, limit=limit + 1
    )
    data, next_cursor = page(rows, limit, _attempt, "seq")
    return Page(data=data, next_cursor=next_cursor)


def _checkpoint(row: Row) -> CheckpointView:
    return CheckpointView(
        step=row["step"],
        version=row["version"],
        kind=row["kind"],
        delta=row["delta"],
        has_snapshot=row["has_snapshot"],
        worker=_worker(row),
        fence=row["fence"],
        attempt=row["attempt"],
        created_at=row["created_at"],
    )


@router.get("/checkpoints", operation_id="listCheckpoints", response_model=Page[CheckpointView])
async def get_checkpoints(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: LongLimit = _ALL,
    cursor: NumberCursor = None,
) -> Page[CheckpointView]:
    """List the checkpoints of a run, in order: what each step changed."""
    after = int(cursor or 0)
    rows = await read_checkpoints(
        services.db, caller.tenant_id, run_id, after=after, limit=limit + 1
    )
    data, next_cursor = page(rows, limit, _checkpoint, "step")
    return Page(data=data, next_cursor=next_cursor)


def message_view(row: Row) -> MessageView:
    """Show a message of a run."""
    return MessageView(
        n=row["n"],
        step=row["step"],
        role=row["role"],
        trust=row["trust"],
        content=row["body"]["content"],
    )


@router.get("/messages", operation_id="listMessages", response_model=Page[MessageView])
async def get_messages(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: LongLimit = _ALL,
    cursor: NumberCursor = None,
) -> Page[MessageView]:
    """List the messages of a run's own conversation, in order."""
    after = int(cursor or 0)
    rows = await read_messages(services.db, caller.tenant_id, run_id, after=after, limit=limit + 1)
    data, next_cursor = page(rows, limit, message_view, "n")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/tree", operation_id="getRunTree", response_model=RunTree)
async def get_tree(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    limit: StepLimit = _ALL,
    cursor: CallCursor = None,
) -> RunTree:
    """Read a run as session, turns, steps and tool calls, some steps a page: a turn may go on in
    the next one.
    """
    db, tenant_id = services.db, caller.tenant_id
    # A step says which turn it is in only when that changed: the cursor has step and turn.
    after, number = map(int, cursor.split(".")) if cursor else (0, 0)
    run = await view_run(db, tenant_id, run_id)
    rows = await read_checkpoints(db, tenant_id, run_id, after=after, limit=limit + 1)
    checkpoints = rows[:limit]
    steps = [row["step"] for row in checkpoints]
    calls = await read_calls_of_steps(db, tenant_id, run_id, steps=steps)
    turns: list[TreeTurn] = []
    for row in checkpoints:
        number = row["delta"].get("turn", number)
        if not turns or turns[-1].turn != number:
            turns.append(TreeTurn(turn=number, steps=[]))
        turns[-1].steps.append(
            TreeStep(
                step=row["step"],
                kind=row["kind"],
                tool_calls=[
                    TreeCall(call=_call(c), tool=c["name"], status=c["status"])
                    for c in calls.get(row["step"], [])
                ],
            )
        )
    return RunTree(
        session=encode("session", run["session_id"]),
        run=encode("run", run_id),
        turns=turns,
        next_cursor=f"{steps[-1]}.{number}" if len(rows) > limit else None,
    )


def _relative(row: Row) -> Relative:
    is_child = row["relation"] == "child"
    return Relative(
        run_id=encode("run", row["id"]),
        relation=row["relation"],
        status=shown(Status(row["status"]), row["cancel_requested"]),
        agent=AgentRef(name=row["agent_name"], version=row["agent_version"]),
        stop_reason=row["stop_reason"],
        call=f"{row['parent_step']}.{row['parent_idx']}" if is_child else None,
        step=row["forked_step"] if row["relation"] in {"retry", "fork"} else None,
        overrides={k: v for k, v in row["overrides"].items() if k != "recorded"},
        created_at=row["created_at"],
    )


@router.get("/lineage", operation_id="getLineage", response_model=LineageView)
async def get_lineage(run_id: RunId, services: Use, caller: CanRead) -> LineageView:
    """Read where a run comes from and what came of it: parents and sources, children, retries and
    forks.
    """
    found = await read_lineage(services.db, caller.tenant_id, run_id)
    below = [_relative(row) for row in found.below]
    return LineageView(
        run_id=encode("run", run_id),
        ancestors=[_relative(row) for row in found.above],
        children=[r for r in below if r.relation == "child"],
        forks=[r for r in below if r.relation != "child"],
    )
