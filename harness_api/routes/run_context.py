"""What the model saw in a step."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_api.schemas.run_context import (
    ContextMessage,
    ContextTokens,
    ContextTool,
    ContextView,
    LeftOut,
    StepNumber,
)
from harness_common.core.context_prompt import kind_of, left_out_of
from harness_common.core.context_view import Shown
from harness_common.core.ids import encode
from harness_common.core.message import Json, to_json
from harness_common.core.tokens import message_tokens
from harness_common.store.context_reads import SeenContext, read_context

router = new_router("/v1/runs/{run_id}/steps", "run details")

CanRead = Annotated[Caller, requires("runs:read")]


@router.get("/{step}/context", operation_id="getStepContext", response_model=ContextView)
async def get_context(
    run_id: RunId, step: StepNumber, services: Use, caller: CanRead
) -> ContextView:
    """Read what the model saw in a step: system text, tools, messages with their sizes, and what
    was left out. Put together again from the store as it was sent.
    """
    seen = await read_context(services.db, caller.tenant_id, run_id, step)
    return ContextView(
        run_id=encode("run", run_id),
        step=step,
        model=seen.answer["model"],
        tokens=_tokens(seen),
        system=seen.system,
        tools=[ContextTool(**tool) for tool in seen.tools],
        messages=[_message(run_id, one) for one in seen.shown],
        left_out=[
            _left_out(found)
            for found in (*left_out_of(seen.shown), *seen.record.get("left_out", ()))
        ],
    )


def _tokens(seen: SeenContext) -> ContextTokens:
    record = seen.record
    return ContextTokens(
        total=record["tokens"],
        limit=record["limit"],
        ratio=record["ratio"],
        by=record["by"],
        reported_input=seen.answer["input_tokens"],
        reported_output=seen.answer["output_tokens"],
    )


def _message(run_id: UUID, one: Shown) -> ContextMessage:
    of_run, _, n = one.origin.rpartition(":")
    message = one.message
    return ContextMessage(
        n=int(n) if n else None,
        run_id=encode("run", UUID(hex=of_run) if of_run else run_id),
        role=message.role,
        kind=kind_of(one),
        trust=message.trust,
        tokens=message_tokens(message),
        content=to_json(message)["content"],
    )


def _left_out(found: Json) -> LeftOut:
    return LeftOut(
        what=found["what"], count=found.get("count", 1), why=found["why"], step=found.get("step")
    )
