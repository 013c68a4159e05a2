"""How a call ended, as the run's state takes it: with its marks, its trust, and what is said of a
person's changes and of a fallback.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from harness_common.contracts.tool import Tool
from harness_common.core.approval import told_edited
from harness_common.core.denials import DENIALS
from harness_common.core.policy import Verdict
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.tools.call import Ended, PendingCall, ToolScope
from harness_worker.tools.faults import denied
from harness_worker.tools.gate import Gate, marks_after
from harness_worker.tools.ledger import fingerprint


class Outcomes:
    """Builds the outcomes of one step's calls."""

    def __init__(self, scope: ToolScope, gate: Gate) -> None:
        self.scope = scope
        self._gate = gate

    def of(
        self, call: PendingCall, tool: Tool | None, ended: Ended, *, recorded: bool = False
    ) -> CallOutcome:
        """Build how a call ended; only a call that got as far as an attempt has a fingerprint."""
        asks = ended.status is CallStatus.AWAITING_APPROVAL  # nothing was tried yet
        spec = tool.spec if tool else None
        served_by = spec.name if spec and ended.began and spec.name != call.name else None
        scope, begun = self.scope, tool is not None and ended.began
        marks, policy = self._marks(tool, ended), ended.policy or call.policy
        plain = ended.status is CallStatus.SUCCEEDED and call.answer is None and not call.edited
        lasts_s = spec.cache_s if spec and plain else None
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=ended.status,
            content=_marked(call, ended, served_by),
            error_type=ended.error_type,
            trust="untrusted" if self._is_untrusted(tool, ended) else "trusted",
            duration_ms=ended.duration_ms,
            cost_usd=ended.cost_usd,
            input_tokens=ended.input_tokens,
            output_tokens=ended.output_tokens,
            artifacts=ended.artifacts,
            attempt=call.attempt + (not asks) + len(ended.failed_attempts),
            effect=str(spec.effect) if spec else None,
            tool_version=spec.version if spec and not asks else None,
            resume_at=None if asks else ended.resume_at,
            wait=ended.wait,
            marks=marks,
            policy=policy and {**policy, "marks": list(marks)},
            recorded=recorded,
            fingerprint=fingerprint(scope.run.tenant_id, tool, call.arguments)
            if tool and begun
            else None,
            ran_arguments=call.changed_arguments() if begun else None,
            failed_attempts=ended.failed_attempts,
            cached_until=scope.clock() + timedelta(seconds=lasts_s) if lasts_s else None,
            served_by=served_by,
        )

    def _is_untrusted(self, tool: Tool | None, ended: Ended) -> bool:
        return ended.untrusted or (
            tool is not None and not _was_denied(ended) and self._gate.is_untrusted(tool)
        )

    def _marks(self, tool: Tool | None, ended: Ended) -> tuple[str, ...]:
        """Return what the run has touched once the call has ended; a denied one touched nothing."""
        if tool is None or _was_denied(ended):
            return ()
        return tuple(sorted({*self._gate.marks_after(tool), *ended.marks}))

    def reread(self, call: PendingCall, recorded: CallOutcome) -> CallOutcome:
        """Give back a recorded result if policy still allows the call: what it denies now is not
        readable any more. The ledger keeps the result.
        """
        if recorded.status not in {CallStatus.SUCCEEDED, CallStatus.FAILED}:
            return recorded  # nothing was done, so there is nothing to read
        decision = self._gate.recheck(call)
        if decision.verdict is not Verdict.DENY:
            kept = (recorded.policy or {}).get("marks", ())
            return replace(recorded, marks=tuple(sorted({*marks_after(decision), *kept})))
        no = denied(call.name, decision)
        return replace(
            recorded,
            status=no.status,
            content=no.content,
            error_type=no.error_type,
            trust="trusted",
            artifacts=(),
            policy=decision.to_json(),
        )

    def from_cache(self, call: PendingCall, tool: Tool, found: CallOutcome) -> CallOutcome:
        """Give a cached result what this run's rules and state say of it."""
        marks = self._marks(tool, Ended(CallStatus.SUCCEEDED, ""))
        return replace(
            found,
            content=(told_edited(call.arguments) if call.edited else "") + found.content,
            trust="untrusted" if self._gate.is_untrusted(tool) else found.trust,
            marks=marks,
            policy=call.policy and {**call.policy, "marks": list(marks)},
        )


def _was_denied(ended: Ended) -> bool:
    return ended.status is CallStatus.REJECTED and ended.error_type in DENIALS


def _marked(call: PendingCall, ended: Ended, served_by: str | None) -> str:
    """Say in a result that a person changed the arguments, or that another tool gave it than the
    one asked for.
    """
    text = ended.content
    if ended.wait is None and ended.began and call.edited:
        text = told_edited(call.arguments) + text
    if served_by is not None and ended.status in ENDED:
        text = f"{text}\n[from the fallback tool {served_by}]"
    return text
