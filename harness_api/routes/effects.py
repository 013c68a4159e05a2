"""Effects whose outcome nobody knows: list them, look at one, say what became of it."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Depends, Path, Query

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import Limit, page
from harness_api.routes.announce import announce_change
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.effects import EffectResolve, EffectView
from harness_api.schemas.runs import RunIdText
from harness_common.commands import resolve_effect
from harness_common.core.errors import Invalid
from harness_common.core.ids import decode, encode
from harness_common.core.phase import shown
from harness_common.core.run import Status
from harness_common.store.connection import Row
from harness_common.store.effects import CallKey, Resolution, list_unknown, read_call

router = new_router("/v1", "effects")

CanRead = Annotated[Caller, requires("effects:read")]
CanWrite = Annotated[Caller, requires("effects:write")]
_CALL = "^[0-9]{1,9}[.][0-9]{1,9}$"
Cursor = Annotated[
    str | None,
    Query(
        pattern="^[0-9a-f]{32}[.][0-9]{1,9}[.][0-9]{1,9}$",
        description="`next_cursor` of the page before.",
    ),
]


async def _key(
    run_id: RunId,
    call: Annotated[str, Path(pattern=_CALL, description="`step.index`, for example `2.0`.")],
) -> CallKey:
    step, index = map(int, call.split("."))
    return CallKey(run_id, step, index)


Key = Annotated[CallKey, Depends(_key)]


def effect_view(row: Row) -> EffectView:
    """Show a call; `row` has its run's status and agent and its worker beside its own columns."""
    key = CallKey(row["run_id"], row["step"], row["idx"])
    evidence = row["evidence"] or {}
    unknown = row["status"] == "unknown"
    return EffectView(
        run_id=encode("run", key.run_id),
        call=key.call,
        tool=row["name"],
        arguments=row["arguments"],
        effect=row["effect"],
        status=row["status"],
        attempts=row["attempt"],
        authorised=row["authorised"],
        result=row["result"],
        error_type=row["error_type"],
        idempotency_key=key.shown,
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        worker=row["worker"],
        why=(evidence.get("why") or row["result"] or row["error_type"]) if unknown else None,
        evidence=row["evidence"],
        resolution=row["resolution"],
        agent=row["agent_name"],
        acting=row["acting_name"],
        run_status=shown(Status(row["run_status"]), row["run_cancel_requested"]),
    )


@router.get("/effects", operation_id="listEffects", response_model=Page[EffectView])
async def get_effects(
    services: Use,
    caller: CanRead,
    status: Annotated[
        Literal["unknown"], Query(description="Those that a person has to decide.")
    ] = "unknown",
    run_id: RunIdText | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[EffectView]:
    """List the calls of which nobody knows whether they took effect, the newest run's first."""
    del status
    rows = await list_unknown(
        services.db,
        caller.tenant_id,
        run_id=decode("run", run_id) if run_id else None,
        after=_after(cursor),
        limit=limit + 1,
    )
    data, next_cursor = page(rows, limit, effect_view, "run_id", "step", "idx")
    return Page(data=data, next_cursor=next_cursor)


def _after(cursor: str | None) -> CallKey | None:
    if cursor is None:
        return None
    digits, step, index = cursor.split(".")
    return CallKey(UUID(hex=digits), int(step), int(index))


@router.get("/runs/{run_id}/calls/{call}", operation_id="getCall", response_model=EffectView)
async def get_call(key: Key, services: Use, caller: CanRead) -> EffectView:
    """Read one tool call as the ledger has it, with the evidence about it."""
    return effect_view(await read_call(services.db, caller.tenant_id, key))


@router.post(
    "/runs/{run_id}/calls/{call}/resolve",
    operation_id="resolveEffect",
    response_model=EffectView,
)
async def post_resolve(
    body: EffectResolve, key: Key, services: Use, caller: CanWrite
) -> EffectView:
    """Say what became of an unknown effect: it happened (`succeeded`), it did not (`failed`), or
    run it again. The run goes on when none is left unknown. 409 names who was first.
    """
    if body.outcome == "run_again" and body.result is not None:
        raise Invalid(
            "run_again takes no result: the call makes its own", field="result", value=None
        )
    said = Resolution(body.outcome, caller.name, body.reason, body.result)
    asked = await resolve_effect(services.db, caller.tenant_id, key, said, actor=caller.actor)
    await announce_change(services, key.run_id, asked)
    return effect_view(await read_call(services.db, caller.tenant_id, key))
