"""Asks policy about a call, each time before anything is started or a recorded result is read."""

from __future__ import annotations

from typing import Final

from harness_common.contracts.tool import Tool
from harness_common.core.policy import Decision, Verdict
from harness_worker.tools.call import PendingCall, ToolScope

_RISKS: Final = ("low", "medium", "high")


class Gate:
    """The policy of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    async def decide(self, call: PendingCall, tool: Tool) -> Decision:
        """Say whether the call may be made as it stands."""
        asked = self._scope.settings.tool.ask_for_risk
        if asked is not None and _RISKS.index(tool.spec.risk) >= _RISKS.index(asked):
            why = f"the risk of {tool.spec.name} is {tool.spec.risk}"
            return Decision(Verdict.ASK, (why,), "ask_for_risk", risk=tool.spec.risk)
        return Decision(Verdict.ALLOW, risk=tool.spec.risk)
