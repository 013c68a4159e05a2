"""Asks a person about a call that policy does not allow by itself.

`Approvals.seek` reads what a person said of the call, or makes it wait: the row that a person is
shown is written by the commit that lets the run wait. A yes is bound to the arguments, the tool's
version and the policy's version that were shown; when one of them differs it is void and the call
is asked about anew. It is used once: by the statement that writes the intent (`call_intent.sql`),
or just before the attempt of a call that needs none (`approval_use.sql`) (INV19).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from harness_common.contracts.tool import Tool
from harness_common.core.approval import (
    DENIED,
    EXPIRED,
    ApprovalStatus,
    digest,
    told_denied,
    told_expired,
)
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.policy import Decision, Verdict
from harness_common.core.step import Wait
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_worker.tools.call import Ended, PendingCall, ToolScope
from harness_worker.tools.faults import failed
from harness_worker.tools.preview import preview_of
from harness_worker.tools.validate import closed

_OPEN: Final = {ApprovalStatus.PENDING, ApprovalStatus.APPROVED}


@dataclass(frozen=True, slots=True)
class Approved:
    """A person's yes, and to what exactly."""

    approval_id: UUID | None
    """What is to be used up before the call is made; None when nothing is: the call was begun under
    it already, or policy needs no person any more.
    """
    arguments: Json
    edited: bool = False
    """Whether a person changed the arguments."""
    role: str = ""
    same_person: bool = False
    """Whether who approved is who started the run."""

    def covers(self, decision: Decision) -> bool:
        """Tell whether the yes is enough for what policy says of the changed arguments."""
        if decision.verdict is not Verdict.ASK:
            return True
        return self.role in decision.approver_roles and not (
            decision.four_eyes and self.same_person
        )


class Approvals:
    """The approvals of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    async def seek(self, call: PendingCall, tool: Tool, decision: Decision) -> Approved | Ended:
        """Return a person's yes for the call, or how it ended or waits without one."""
        found = await self._read(call)
        told = ApprovalStatus(found["status"]) if found["status"] else None
        if told is ApprovalStatus.DENIED:
            text = told_denied(call.name, found["reason"] or "")
            return Ended(CallStatus.REJECTED, text, DENIED)
        if told is ApprovalStatus.EXPIRED:
            return Ended(CallStatus.REJECTED, told_expired(call.name), EXPIRED)
        if call.status is CallStatus.RUNNING:
            # It was begun, and waits for a time, an answer or a child: that is one use.
            begun = call.row.get("tool_version")
            if begun is not None and begun != tool.spec.version:
                return failed(tool.spec.name, "TOOL_CHANGED", _changed(tool, begun))
            return Approved(None, call.arguments, call.edited)
        if told not in _OPEN and decision.verdict is Verdict.ASK:
            return await self._ask(call, tool, decision, found)
        if told not in _OPEN:
            return Approved(None, call.arguments)
        return await self._open(call, tool, decision, found)

    async def ask_again(
        self, call: PendingCall, tool: Tool, decision: Decision, arguments: Json
    ) -> Ended:
        """Ask about arguments that a person changed beyond what that person may approve."""
        found = await self._read(call)
        return await self._ask(call, tool, decision, found, arguments)

    async def use(self, call: PendingCall, tool: Tool) -> bool:
        """Use up the call's approval; False when it is used, or the run is another's or to stop."""
        run = self._scope.run
        rows = await self._scope.db.fetch(
            "approval_use",
            self._scope.key(call.index)
            | {
                "version": run.version,
                "fence": run.fence,
                "claim_id": run.claim_id,
                "approval_id": call.approval_id,
                "digest": digest(call.name, call.arguments),
                "tool_version": tool.spec.version,
            },
        )
        return bool(rows)

    async def _read(self, call: PendingCall) -> Row:
        found = await self._scope.db.fetch_one("approval_seek", self._scope.key(call.index))
        assert found is not None  # the run is there
        return found

    async def _open(
        self, call: PendingCall, tool: Tool, decision: Decision, row: Row
    ) -> Approved | Ended:
        """Go by an approval that is pending or given, if it is still about this call."""
        asks = decision.verdict is Verdict.ASK
        if not _holds(call, tool, row) or (
            asks and row["policy_version"] != decision.policy_version
        ):
            return await self._ask(call, tool, decision, row)
        if row["status"] == ApprovalStatus.APPROVED:
            return Approved(
                row["id"],
                row["arguments"],
                row["original_digest"] is not None,
                row["decided_role"] or "",
                row["decided_by"] == row["started_by"],
            )
        if not asks:
            return Approved(None, call.arguments)
        # Also when its time is over: only the scheduler says so, under the run's lock.
        return _waits(Wait(call.index, "approval", row["expires_at"], _about(row, tool, decision)))

    async def _ask(
        self,
        call: PendingCall,
        tool: Tool,
        decision: Decision,
        found: Row,
        changed: Json = None,
    ) -> Ended:
        """Make the call wait for a person; the row is written with the run's wait."""
        scope, original = self._scope, _normal(call.arguments)
        if changed is None and found["status"] == ApprovalStatus.APPROVED:
            changed = found["arguments"] if found["original_digest"] is not None else None
        arguments = original if changed is None else changed
        limit_s = decision.expires_s or scope.settings.tool.approval_expires_s
        row: dict[str, Json] = {
            "id": found["new_id"],
            "step": scope.step,
            "idx": call.index,
            "digest": digest(call.name, arguments),
            "tool": call.name,
            "tool_version": tool.spec.version,
            "policy_version": decision.policy_version,
            "effect": str(tool.spec.effect),
            "arguments": json_codec.dumps_text(arguments),
            "input_schema": json_codec.dumps_text(closed(tool.spec.input_schema)),
            "shown": await self._shown(tool, decision, found, arguments),
            "approver_roles": list(decision.approver_roles),
            "four_eyes": decision.four_eyes,
            "started_by": found["started_by"],
            "expires_at": scope.clock() + timedelta(seconds=limit_s),
        }
        if changed is not None:
            row["original_arguments"] = json_codec.dumps_text(original)
            row["original_digest"] = digest(call.name, original)
            row["edited_by"] = found["edited_by"]
        about = _about(row, tool, decision)
        return _waits(Wait(call.index, "approval", row["expires_at"], about, row))

    async def _shown(self, tool: Tool, decision: Decision, found: Row, arguments: Json) -> Json:
        """Return what helps a person to decide."""
        return {
            "preview": await preview_of(tool, arguments, self._scope.threads),
            "risk": decision.risk,
            "rule": decision.rule,
            "reasons": list(decision.reasons),
            "provenance": {
                "step": self._scope.step - 1,
                "message": found["message"],
                "tainted": found["tainted"]
                or (decision.facts is not None and decision.facts.tainted),
                "started_by": found["started_by"],
            },
        }


def _holds(call: PendingCall, tool: Tool, row: Row) -> bool:
    """Tell whether an approval is about this call as it stands."""
    asked = row["original_digest"] or row["digest"]
    shown = (asked, row["digest"], row["tool_version"])
    now = (
        digest(call.name, _normal(call.arguments)),
        digest(call.name, row["arguments"]),
        tool.spec.version,
    )
    return shown == now


def _changed(tool: Tool, begun: str) -> str:
    return (
        f"it was begun with version {begun} of the tool, which a person allowed, and that is "
        f"{tool.spec.version} now. Nothing more was run; call it again to ask anew"
    )


def _normal(arguments: Json) -> Json:
    """Return arguments as the database gives them back."""
    return json_codec.loads(json_codec.dumps(arguments))


def _about(row: Row, tool: Tool, decision: Decision) -> dict[str, Json]:
    return {
        "approval": encode("approval", row["id"]),
        "tool": tool.spec.name,
        "risk": decision.risk,
        "reasons": list(decision.reasons),
        "digest": row["digest"],
    }


def _waits(wait: Wait) -> Ended:
    return Ended(CallStatus.AWAITING_APPROVAL, wait.kind, wait=wait)
