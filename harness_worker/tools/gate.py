"""Asks policy about a call, each time before anything is started or a recorded result is read.

The rules are pure (`core.policy`); what they look at was read once, at the start of the step
(`PolicyView`), and is the same for all its calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from harness_common.contracts.tool import Tool
from harness_common.core.doubt import doubt_about
from harness_common.core.policy import Decision, Verdict, decide
from harness_common.core.tool_call import CallStatus
from harness_worker.tools.call import PendingCall, ToolScope

_NOT_STARTED: Final = frozenset({CallStatus.REJECTED, CallStatus.CANCELLED})


class Gate:
    """The policy of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope
        self._adds: dict[int, frozenset[str]] = {}
        self._usd: dict[int, float] = {}

    def expect(self, calls: Iterable[PendingCall]) -> None:
        """Take note of all calls of the step: the rule of two looks at them together, in the order
        asked, whichever of them runs first.
        """
        registry, view = self._scope.registry, self._scope.policy
        for call in calls:
            if call.name in registry and call.status not in _NOT_STARTED:
                spec = registry.get(call.name).spec
                self._adds[call.index] = view.about(spec, None).adds

    async def decide(self, call: PendingCall, tool: Tool) -> Decision:
        """Say whether the call may be made as it stands."""
        view = self._scope.policy
        others_usd = sum(usd for index, usd in self._usd.items() if index != call.index)
        facts = view.about(
            tool.spec, call.arguments, beside=self._beside(call), spoken_for_usd=others_usd
        )
        doubt = doubt_about(self._scope.run.state.memo, call.index)
        if doubt is not None:
            facts = replace(facts, doubt=doubt)
        decision = decide(facts, view.facts.policies)
        if decision.verdict is Verdict.DENY:
            self._adds.pop(call.index, None)
        else:
            self._usd[call.index] = tool.spec.cost_estimate_usd
        return decision

    def recheck(self, call: PendingCall) -> Decision:
        """Say whether the result that the call has had may still be read; by what was known of its
        tool then, if the tool is gone.
        """
        view, registry = self._scope.policy, self._scope.registry
        if call.name in registry:
            spec = registry.get(call.name).spec
            facts = view.about(spec, call.arguments, beside=self._beside(call), recheck=True)
        else:
            facts = view.about_old(call.row, call.arguments)
        return decide(facts, view.facts.policies)

    def _beside(self, call: PendingCall) -> frozenset[str]:
        before = (self._adds.get(i, frozenset()) for i in range(call.index))
        return frozenset().union(*before)

    def is_untrusted(self, tool: Tool) -> bool:
        """Tell whether a tool's results come from outside the tenant's control."""
        return self._scope.policy.about(tool.spec, None).untrusted_output

    def marks_after(self, tool: Tool) -> tuple[str, ...]:
        """Return what the run holds once the tool has run."""
        facts = self._scope.policy.about(tool.spec, None)
        return tuple(sorted({*facts.marks, *facts.adds}))


def marks_after(decision: Decision) -> tuple[str, ...]:
    """Return what the run holds once the call that was decided about has run."""
    facts = decision.facts
    return () if facts is None else tuple(sorted({*facts.marks, *facts.adds}))
