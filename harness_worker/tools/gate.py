"""Asks policy about a call, each time before anything is started or a recorded result is read."""

from __future__ import annotations

from harness_common.contracts.tool import Tool
from harness_common.core.policy import Decision, Verdict
from harness_worker.tools.call import PendingCall, ToolScope


class Gate:
    """The policy of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    async def decide(self, call: PendingCall, tool: Tool) -> Decision:
        """Say whether the call may be made as it stands."""
        return Decision(Verdict.ALLOW, risk=tool.spec.risk)
