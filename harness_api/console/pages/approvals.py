"""The approvals inbox: what a call would do exactly; a yes, a no, or a yes to other arguments."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from harness_api.aside import aside
from harness_api.console.access import requires_page
from harness_api.console.diffs import as_diff, changed_lines
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import approvals
from harness_api.routes.approvals import ApprovalId
from harness_api.schemas.approvals import ApprovalApprove, ApprovalDeny, ApprovalView
from harness_common.core.errors import Invalid

router = new_pages("/console/approvals")

CanRead = Annotated[Visit, requires_page("approvals:read")]
CanDecide = Annotated[Visit, requires_page("approvals:write")]
LIMIT = 50
_INBOX = "/console/approvals"


@router.get("")
async def inbox(
    services: Use,
    visit: CanRead,
    show: Annotated[Literal["pending", "all"], Query()] = "pending",
    cursor: IdCursor = None,
) -> Response:
    """List what waits for a person, or all that ever did."""
    status: Any = "pending" if show == "pending" else None
    found = await approvals.get_approvals(
        services, visit.caller, status=status, limit=LIMIT, cursor=cursor
    )
    return visit.page(
        "approvals.html",
        approvals=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
        show=show,
    )


@router.get("/{approval_id}")
async def approval_page(approval_id: ApprovalId, services: Use, visit: CanRead) -> Response:
    """Show one call with all that is needed to decide about it."""
    one = await approvals.get_approval(approval_id, services, visit.caller)
    before, after = one.original_arguments, one.arguments
    edited = [] if before is None else await aside(lambda: changed_lines(before, after))
    return visit.page(
        "approval.html",
        one=one,
        preview_lines=as_diff(one.preview.text) if one.preview else None,
        refusal=_refusal(one, visit),
        edited=edited,
        editable=json.dumps(one.arguments, indent=2, ensure_ascii=False),
    )


def _refusal(one: ApprovalView, visit: Visit) -> str:
    """Say why this person may not decide; empty when they may."""
    if not visit.may("approvals:write"):
        return f"Your key (role {visit.caller.role}) may look and not decide."
    if visit.caller.role not in one.approver_roles:
        return f"The policy wants one of these roles: {', '.join(one.approver_roles)}."
    started_by = one.provenance.started_by if one.provenance else None
    if one.four_eyes and started_by == visit.caller.name:
        return "Four eyes: your key started this run, so somebody else decides."
    return ""


@router.post("/{approval_id}/approve")
async def approve(approval_id: ApprovalId, services: Use, visit: CanDecide) -> Response:
    """Approve with the arguments that were shown, or with those in the form."""
    body = ApprovalApprove(
        expected_digest=visit.form.get("digest", ""),
        reason=visit.form.get("reason", ""),
        arguments=_arguments(visit.form.get("arguments", "")),
    )
    one = await approvals.post_approve(body, approval_id, services, visit.caller)
    return visit.go(_INBOX, f"Approved: {one.tool}. Its run goes on.")


@router.post("/{approval_id}/deny")
async def deny(approval_id: ApprovalId, services: Use, visit: CanDecide) -> Response:
    """Deny; the model is told why."""
    body = ApprovalDeny(
        reason=visit.form.get("reason", ""), expected_digest=visit.form.get("digest") or None
    )
    one = await approvals.post_deny(body, approval_id, services, visit.caller)
    return visit.go(_INBOX, f"Denied: {one.tool}. The model is told why and goes on.")


def _arguments(text: str) -> dict[str, Any] | None:
    """Read changed arguments; None for an empty field, which leaves them as they were shown."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
        # As the API: no NaN, no infinity, no half of a character.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the arguments are no JSON: {error}", field="arguments") from None
    if not isinstance(value, dict):
        raise Invalid("the arguments are a JSON object", field="arguments")
    return value
