"""What a person decides about a tool call that waits for approval: yes, yes with other arguments,
no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from jsonschema.exceptions import best_match

from harness_common.commands.control import Asked, approval_decided_in
from harness_common.contracts.tool_schema import stranger_validator
from harness_common.core.approval import ApprovalStatus, digest
from harness_common.core.errors import Conflict, Denied, Invalid
from harness_common.core.ids import encode
from harness_common.core.inputs import ApprovalDecided
from harness_common.core.message import Json
from harness_common.core.run import TERMINAL
from harness_common.store import json_codec
from harness_common.store.apply import lock_run
from harness_common.store.approvals import Said, decide_in, read_approval_in
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row
from harness_common.store.db import Database

_SAYS_YES = {ApprovalStatus.APPROVED, ApprovalStatus.USED}
_DECIDED = {*_SAYS_YES, ApprovalStatus.DENIED}


@dataclass(frozen=True, slots=True)
class Approver:
    """Who decides: the name by which the audit trail knows them, and their key's role."""

    actor: Actor
    role: str

    @property
    def name(self) -> str:
        """Name who decides."""
        return self.actor.name


@dataclass(frozen=True, slots=True)
class Decide:
    """What a person says of a call. `expected_digest` names the arguments that were shown."""

    verdict: Literal["approved", "denied"]
    expected_digest: str | None
    reason: str = ""
    arguments: Json = None
    """Arguments to use instead; None leaves them as they are."""


async def decide_approval(
    db: Database, tenant_id: UUID, approval_id: UUID, said: Decide, *, approver: Approver
) -> tuple[Row, Asked]:
    """Record a decision and let its run go on when it was the last that the run waits for.

    Safe to repeat: the same decision again changes nothing. Raises `NotFound`; `Denied` for whom
    the approval is not; `Invalid` for arguments that the tool does not take; `Conflict` when
    somebody decided otherwise before, when it is about other arguments than those shown, and when
    its time is over.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        row = await read_approval_in(conn, tenant_id, approval_id, db.timeout_s)
        _check_may(row, said, approver)
        held = await lock_run(conn, tenant_id, row["run_id"], db.timeout_s)
        assert held is not None  # an approval goes with its run
        run, _ = held
        row = await read_approval_in(conn, tenant_id, approval_id, db.timeout_s)
        if _is_repeat(row, said):
            return row, Asked(run.state.status, run.claimed_by, changed=False)
        _check_open(row, said)
        if run.state.cancel_requested or run.state.status in TERMINAL:
            raise Conflict("the run is about to stop", code="RUN_STOPPING", status="cancelling")
        arguments = _changed(row, said)
        asked = await _write(db, conn, row, said, arguments, approver)
        return await read_approval_in(conn, tenant_id, approval_id, db.timeout_s), asked


async def _write(
    db: Database, conn: Connection, row: Row, said: Decide, arguments: Json, approver: Approver
) -> Asked:
    """Write the decision, what it makes of the run, and the audit row, in the open transaction."""
    new = row["digest"] if arguments is None else digest(row["tool"], arguments)
    status = ApprovalStatus(said.verdict)
    written = Said(status, approver.name, approver.role, said.reason, new, arguments)
    won = await decide_in(conn, row, written, db.timeout_s)
    shown = encode("approval", row["id"])
    if not won:  # its run is locked: only time can have passed
        raise _expired(row)
    one = ApprovalDecided(
        approver.name, shown, row["idx"], row["tool"], said.verdict, said.reason,
        arguments is not None,
    )  # fmt: skip
    asked = await approval_decided_in(db, conn, row["tenant_id"], row["run_id"], one)
    detail: dict[str, Json] = {
        "run": encode("run", row["run_id"]),
        "call": f"{row['step']}.{row['idx']}",
        "tool": row["tool"],
        "digest": new,
        "reason": said.reason,
    }
    if arguments is not None:
        detail["original_digest"] = row["digest"]
    action = "approval.approve" if said.verdict == "approved" else "approval.deny"
    record(conn, row["tenant_id"], approver.actor, Entry(action, shown, detail))
    return asked


def _check_may(row: Row, said: Decide, approver: Approver) -> None:
    """Refuse whom the approval is not for."""
    allowed = row["approver_roles"]
    if approver.role not in allowed:
        raise Denied(
            f"this approval is for keys of role {' or '.join(allowed)}; this key's is "
            f"{approver.role}",
            code="APPROVER_ROLE",
            role=approver.role,
            limit=list(allowed),
        )
    same = approver.name == row["started_by"]
    if said.verdict == "approved" and row["four_eyes"] and same:
        raise Denied(
            f"{approver.name} started the run, and this call needs somebody else's approval "
            "(four eyes)",
            code="FOUR_EYES",
            started_by=row["started_by"],
        )


def _is_repeat(row: Row, said: Decide) -> bool:
    """Tell whether the same was decided already."""
    status = ApprovalStatus(row["status"])
    if said.verdict == "denied":
        return status is ApprovalStatus.DENIED
    if status not in _SAYS_YES:
        return False
    wanted = said.expected_digest
    if said.arguments is not None:
        wanted = digest(row["tool"], json_codec.loads(json_codec.dumps(said.arguments)))
    return bool(wanted == row["digest"])


def _check_open(row: Row, said: Decide) -> None:
    """Refuse to decide what is decided, over, or not what was shown."""
    status = ApprovalStatus(row["status"])
    if status is not ApprovalStatus.PENDING:
        raise Conflict(
            _CLOSED[status].format(by=row["decided_by"], at=row["decided_at"]),
            code=f"APPROVAL_{'DECIDED' if status in _DECIDED else status.upper()}",
            status=str(status),
            decided_by=row["decided_by"],
            decided_at=row["decided_at"],
            digest=row["digest"],
        )
    if row["expires_at"] <= row["now"]:
        raise _expired(row)
    if said.expected_digest not in {None, row["digest"]}:
        raise Conflict(
            "the arguments are not those that you were shown; look at the approval again and send "
            "its digest",
            code="DIGEST_MISMATCH",
            field="expected_digest",
            value=said.expected_digest,
            digest=row["digest"],
        )


_CLOSED = {
    ApprovalStatus.APPROVED: "{by} approved it already, at {at}",
    ApprovalStatus.USED: "{by} approved it already, at {at}, and the call was made",
    ApprovalStatus.DENIED: "{by} denied it already, at {at}",
    ApprovalStatus.EXPIRED: "nobody decided in time; the model was told so",
    ApprovalStatus.CANCELLED: "its run has ended",
    ApprovalStatus.VOID: "what it was about has changed; if the call still needs approval, a new "
    "one is pending",
}


def _expired(row: Row) -> Conflict:
    return Conflict(
        f"its time was over at {row['expires_at'].isoformat()}",
        code="APPROVAL_EXPIRED",
        status=str(ApprovalStatus.EXPIRED),
    )


def _changed(row: Row, said: Decide) -> Json:
    """Return the changed arguments as they will be stored; None when they are the same."""
    if said.arguments is None:
        return None
    arguments = json_codec.loads(json_codec.dumps(said.arguments))
    if digest(row["tool"], arguments) == row["digest"]:
        return None
    error = best_match(stranger_validator(row["input_schema"] or {}).iter_errors(arguments))
    if error is not None:
        where = ".".join(map(str, error.absolute_path))
        field = f"arguments.{where}" if where else "arguments"
        raise Invalid(
            f"{row['tool']} does not take these arguments: {field}: {error.message[:300]}",
            code="ARGUMENTS_INVALID",
            field=field,
        )
    return arguments
