"""Tool calls that wait for a person: list them, look at one, approve or deny it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path, Query

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.announce import announce_change
from harness_api.routing import new_router
from harness_api.schemas.approvals import (
    ApprovalApprove,
    ApprovalDeny,
    ApprovalState,
    ApprovalView,
)
from harness_api.schemas.base import Page
from harness_api.schemas.runs import RunIdText
from harness_common.commands import Approver, Decide, decide_approval
from harness_common.core.approval import ApprovalStatus
from harness_common.core.ids import decode, encode
from harness_common.core.phase import shown
from harness_common.core.run import Status
from harness_common.store.approvals import list_approvals, read_approval
from harness_common.store.connection import Row

router = new_router("/v1/approvals", "approvals")

CanRead = Annotated[Caller, requires("approvals:read")]
CanWrite = Annotated[Caller, requires("approvals:write")]


async def _id(approval_id: Annotated[str, Path(pattern="^appr_[0-9a-fA-F]{32}$")]) -> UUID:
    return decode("approval", approval_id)


ApprovalId = Annotated[UUID, Depends(_id)]


def approval_view(row: Row) -> ApprovalView:
    """Show an approval; `row` has its run's agent and status beside its own columns."""
    told = row["shown"]
    return ApprovalView(
        id=encode("approval", row["id"]),
        run_id=encode("run", row["run_id"]),
        call=f"{row['step']}.{row['idx']}",
        agent=row["agent_name"],
        acting=row["acting_name"],
        run_status=shown(Status(row["run_status"]), row["run_cancel_requested"]),
        tool=row["tool"],
        tool_version=row["tool_version"],
        policy_version=row["policy_version"],
        effect=row["effect"],
        arguments=row["arguments"],
        digest=row["digest"],
        preview=told.get("preview"),
        risk=told.get("risk"),
        rule=told.get("rule"),
        reasons=told.get("reasons") or [],
        provenance=told.get("provenance"),
        input_schema=row["input_schema"],
        approver_roles=row["approver_roles"],
        four_eyes=row["four_eyes"],
        status=row["status"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        decided_at=row["decided_at"],
        decided_by=row["decided_by"],
        reason=row["reason"],
        used_at=row["used_at"],
        original_arguments=row["original_arguments"],
        original_digest=row["original_digest"],
        edited_by=row["edited_by"],
    )


@router.get("", operation_id="listApprovals", response_model=Page[ApprovalView])
async def get_approvals(
    services: Use,
    caller: CanRead,
    status: Annotated[ApprovalState | None, Query(description="Only those that stand so.")] = None,
    run_id: RunIdText | None = None,
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[ApprovalView]:
    """List approvals, newest first."""
    rows = await list_approvals(
        services.db,
        caller.tenant_id,
        status=ApprovalStatus(status) if status else None,
        run_id=decode("run", run_id) if run_id else None,
        before=id_of(cursor),
        limit=limit + 1,
    )
    data, next_cursor = page(rows, limit, approval_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{approval_id}", operation_id="getApproval", response_model=ApprovalView)
async def get_approval(approval_id: ApprovalId, services: Use, caller: CanRead) -> ApprovalView:
    """Read one approval: the call, what it would do, where it comes from, who may answer."""
    return approval_view(await read_approval(services.db, caller.tenant_id, approval_id))


@router.post("/{approval_id}/approve", operation_id="approveApproval", response_model=ApprovalView)
async def post_approve(
    body: ApprovalApprove, approval_id: ApprovalId, services: Use, caller: CanWrite
) -> ApprovalView:
    """Approve a call with exactly the arguments that were shown, or with others that the tool
    takes. Safe to repeat. 409 when they are not those shown (`digest` has the new one), when
    somebody decided otherwise before (`decided_by`), and when its time is over.
    """
    said = Decide("approved", body.expected_digest, body.reason, body.arguments)
    return await _decide(services, caller, approval_id, said)


@router.post("/{approval_id}/deny", operation_id="denyApproval", response_model=ApprovalView)
async def post_deny(
    body: ApprovalDeny, approval_id: ApprovalId, services: Use, caller: CanWrite
) -> ApprovalView:
    """Deny a call; the model is told the reason and goes on. Safe to repeat. 409 as for approve."""
    return await _decide(
        services, caller, approval_id, Decide("denied", body.expected_digest, body.reason)
    )


async def _decide(
    services: Services, caller: Caller, approval_id: UUID, said: Decide
) -> ApprovalView:
    approver = Approver(caller.actor, caller.role)
    row, asked = await decide_approval(
        services.db, caller.tenant_id, approval_id, said, approver=approver
    )
    await announce_change(services, row["run_id"], asked)
    return approval_view(row)
