"""Asks a person about a call that policy does not allow by itself."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_common.core.policy import Decision
from harness_common.core.tool_call import CallStatus
from harness_worker.tools.call import Ended, PendingCall, ToolScope


@dataclass(frozen=True, slots=True)
class Approved:
    """A person's yes, and to what exactly."""

    approval_id: UUID
    arguments: Json


class Approvals:
    """The approvals of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    async def seek(self, call: PendingCall, tool: Tool, decision: Decision) -> Approved | Ended:
        """Return a person's yes for the call, or how it ended or waits without one."""
        return Ended(CallStatus.REJECTED, "nobody can be asked", "PERMISSION_DENIED")
