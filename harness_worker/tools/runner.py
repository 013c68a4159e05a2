"""Runs one tool call in the fixed order: find, validate, policy, ledger, attempt, normalise,
persist.

The ledger decides what may happen again. A finished call is given back, to whom it was made for and
for what was asked. A read or an idempotent call is repeated with the same key. A `write` starts
only after its intent is committed under the ownership check, and an intent without a result becomes
`unknown`: nothing is repeated by guessing (INV3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core import events as ev
from harness_common.core.errors import HarnessError, Invalid, LostOwnership, NotFound, Transient
from harness_common.core.policy import Verdict
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.telemetry.tool_calls import WatchedCall
from harness_worker.tools.approvals import Approvals, Approved
from harness_worker.tools.attempt import attempt, attempts, tell
from harness_worker.tools.breakers import GO, Leave, Shut, seconds_until
from harness_worker.tools.call import CancelAsked, Ended, PendingCall, ToolScope
from harness_worker.tools.call_context import CallContext
from harness_worker.tools.faults import PERMISSION_DENIED, denied, failed, refused
from harness_worker.tools.gate import Gate
from harness_worker.tools.ledger import Ledger, fingerprint
from harness_worker.tools.need_input import open_question
from harness_worker.tools.normalise import waiting
from harness_worker.tools.notes import note
from harness_worker.tools.outcomes import Outcomes
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.validate import validate_arguments

_BEGUN = {CallStatus.AWAITING_APPROVAL, CallStatus.RUNNING}
_NEVER_BEGUN = "The step was stopped before this call began. Nothing was run."
_NOT_MADE = {CallStatus.REJECTED, CallStatus.FAILED}
_BREAKER = "breaker"
"""What stands in the place of the result while a call waits for a breaker."""
_PROBED, _LEAST = timedelta(seconds=1), timedelta(seconds=0.1)
"""How long a call waits while another one tries the tool, and how long at the least."""
_RANK = {EffectClass.READ: 0, EffectClass.IDEMPOTENT: 1, EffectClass.WRITE: 2}


class ToolNotHere(Transient):
    """The agent declares a tool that this worker process does not have: another may."""

    code = "TOOL_NOT_HERE"


def declared_tool(registry: ToolRegistry, name: str) -> Tool:
    """Return a tool that an agent declares; `ToolNotHere` lets the step be tried elsewhere."""
    try:
        return registry.get(name)
    except NotFound as error:
        raise ToolNotHere(
            f"this worker has no tool {name!r}; start workers with `--tools` and its module",
            tool=name,
        ) from error


class ToolRunner:
    """Runs the calls of one step."""

    def __init__(self, scope: ToolScope, gate: Gate | None = None) -> None:
        self.scope = scope
        self._ledger = Ledger(scope)
        self._gate = gate or Gate(scope)
        self._approvals = Approvals(scope)
        self.outcomes = Outcomes(scope, self._gate)
        self.writing: set[int] = set()
        """The calls whose effect is under way, by index."""

    def is_write(self, call: PendingCall) -> bool:
        """Tell whether a call must not run beside others."""
        tool = self.tool_of(call)
        return tool is not None and tool.spec.effect is EffectClass.WRITE

    def tool_of(self, call: PendingCall) -> Tool | None:
        """Return the tool that a call asks for, if there is one here."""
        try:
            return self._tool(call.name)
        except (NotFound, ToolNotHere):
            return None

    async def run(self, call: PendingCall) -> CallOutcome:
        """Bring one call to an end (or to a wait) and return how it ended.

        Raises `CancelAsked` and `LostOwnership` when nothing more may be started.
        """
        scope, tool = self.scope, self.tool_of(call)
        number = f"{scope.step}.{call.index}"
        with WatchedCall(scope.run, number, call.tool_use_id, tool, call.arguments) as seen:
            outcome = await self._run(call)
            is_new = not outcome.recorded and outcome.fingerprint is None
            if call.may_have_acted() and is_new and outcome.status in _NOT_MADE:
                # It was begun, and may not go on: what it has done so far is for a person to say.
                outcome = replace(outcome, status=CallStatus.UNKNOWN)
            seen.ended(outcome)
        return outcome

    async def _run(self, call: PendingCall) -> CallOutcome:
        if call.status in ENDED:
            return self._given_back(call)
        if call.status is CallStatus.UNKNOWN:
            return self.outcomes.of(call, None, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        if call.is_dead_intent():
            return await self._unknown(call, "the process that started it is gone")
        try:
            tool = self._tool(call.serves)
            validate_arguments(tool.spec, call.arguments)
        except ToolNotHere:
            raise
        except HarnessError as error:
            return self.outcomes.of(call, None, refused(call.name, error))
        allowed = await self._allowed(call, tool)
        if not isinstance(allowed, Ended):
            return await self._run_allowed(allowed, tool)
        outcome = self.outcomes.of(call, tool, allowed)
        if allowed.error_type != PERMISSION_DENIED or call.status in _BEGUN:
            return outcome
        return await self._without(call, tool, outcome, PERMISSION_DENIED)

    async def _allowed(self, call: PendingCall, tool: Tool) -> PendingCall | Ended:
        """Ask policy, and a person where policy wants one; returns the call as it may be made."""
        if call.row.get("ran_arguments") is not None:
            # It was begun with what a person changed: it goes on, or is run again, with that.
            call = replace(call, arguments=call.ran, edited=True)
        decision = await self._gate.decide(call, tool)
        call = replace(call, policy=decision.to_json())
        if decision.verdict is Verdict.DENY:
            return replace(denied(tool.spec.name, decision), policy=call.policy)
        if decision.verdict is Verdict.ALLOW and call.status is not CallStatus.AWAITING_APPROVAL:
            return call
        answer = await self._approvals.seek(call, tool, decision)
        if isinstance(answer, Ended):
            return replace(answer, policy=call.policy)
        made = replace(
            call,
            arguments=answer.arguments,
            approval_id=answer.approval_id,
            edited=answer.edited or call.edited,
        )
        if made.edited and made.status is not CallStatus.RUNNING:
            return await self._check_edited(call, made, tool, answer)
        return made

    async def _check_edited(
        self, call: PendingCall, made: PendingCall, tool: Tool, answer: Approved
    ) -> PendingCall | Ended:
        """Ask schema and policy about arguments that a person changed: neither is that person's to
        overrule.
        """
        try:
            validate_arguments(tool.spec, made.arguments)
        except Invalid as error:
            return refused(call.name, error)
        decision = await self._gate.decide(made, tool)
        made = replace(made, policy=decision.to_json())
        if decision.verdict is Verdict.DENY:
            return replace(denied(tool.spec.name, decision), policy=made.policy)
        if not answer.covers(decision):
            asked = await self._approvals.ask_again(call, tool, decision, made.arguments)
            return replace(asked, policy=made.policy)
        return made

    def expect(self, calls: Iterable[PendingCall]) -> None:
        """Take note of all calls of the step before the first is run."""
        self._gate.expect(calls)

    def _given_back(self, call: PendingCall) -> CallOutcome:
        """Give back a recorded result: only for what was asked, and only if policy still allows it.

        A call without a fingerprint was never started (or is older than fingerprints).
        """
        recorded = call.recorded()
        if recorded.status is CallStatus.CANCELLED and not recorded.content:
            return replace(recorded, content=_NEVER_BEGUN)
        if recorded.fingerprint is not None and call.status is not CallStatus.CANCELLED:
            name = recorded.served_by or call.name
            tool = self.tool_of(replace(call, name=name))
            if tool is not None:
                asked = fingerprint(self.scope.run.tenant_id, tool, call.ran)
                if asked != recorded.fingerprint:
                    return self.outcomes.of(call, tool, _conflict(recorded, tool), recorded=True)
            call = replace(call, name=name, arguments=call.ran)
        return self.outcomes.reread(call, recorded)

    async def _run_allowed(self, call: PendingCall, tool: Tool) -> CallOutcome:
        """Run a call that is valid and may be made."""
        scope, is_write = self.scope, tool.spec.effect is EffectClass.WRITE
        if (question := open_question(call, scope.clock())) is not None:
            return self.outcomes.of(call, tool, question)
        until = call.waits_until
        if is_write and until is not None and until > scope.clock():
            return self.outcomes.of(call, tool, waiting(Wait(call.index, "time", until)))
        if scope.held.cancel_requested or scope.held.release_asked:
            raise CancelAsked
        if tool.spec.cache_s is not None and (found := await self._ledger.cached(call, tool)):
            return self.outcomes.from_cache(call, tool, found)
        leave = await self._leave(call, tool)
        if call.row["result"] == _BREAKER:
            call = replace(call, resume_at=None)  # nothing of the call itself was waited for
        if isinstance(leave, Shut):
            if (until := self._tried_again_at(tool, leave)) is not None:
                wait = Wait(call.index, "time", until)
                return self.outcomes.of(call, tool, Ended(CallStatus.RUNNING, _BREAKER, wait=wait))
            outcome = self.outcomes.of(
                call, tool, _unavailable(leave, seconds_until(leave, scope.clock()))
            )
            return await self._without(call, tool, outcome, leave.reason)
        outcome, is_fault = await self._start(call, tool, leave)
        if is_fault and tool.spec.effect is EffectClass.READ:
            return await self._without(call, tool, outcome, outcome.error_type or "")
        return outcome

    def _tried_again_at(self, tool: Tool, shut: Shut) -> datetime | None:
        """Return until when a call waits for an open breaker; None when the model is told, or the
        tool's fallback called, at once. A write would look begun while it waits.
        """
        spec, now, most_s = tool.spec, self.scope.clock(), self.scope.settings.tool.breaker_wait_s
        if spec.effect is EffectClass.WRITE or spec.fallback is not None or most_s == 0:
            return None
        if shut.probing:
            return now + _PROBED
        return max(shut.until, now + _LEAST) if seconds_until(shut, now) <= most_s else None

    async def _leave(self, call: PendingCall, tool: Tool) -> Leave | Shut:
        """Ask the tool's breaker; a call that goes on after a wait of its own has begun already."""
        if call.status is CallStatus.RUNNING and call.row["result"] != _BREAKER:
            return GO
        spec = tool.spec
        return await self.scope.breakers.leave(self.scope.run.tenant_id, spec.name, spec.limit_s)

    async def _start(self, call: PendingCall, tool: Tool, leave: Leave) -> tuple[CallOutcome, bool]:
        """Make the call; also tells whether it ended by a fault of the tool."""
        if tool.spec.effect is EffectClass.WRITE:
            return await self._run_write(call, tool, leave), False
        if call.approval_id is not None and not await self._approvals.use(call, tool):
            raise CancelAsked
        ended = await attempts(self.scope, call, tool, leave)
        return self.outcomes.of(call, tool, ended), ended.fault

    async def _without(
        self, call: PendingCall, tool: Tool, outcome: CallOutcome, why: str
    ) -> CallOutcome:
        """Call the fallback of a tool that does not work, or that may not be called; without one
        that helps, `outcome` is the answer. The fallback is asked about like any tool, and has no
        fallback of its own.
        """
        if tool.spec.fallback is None:
            return outcome
        fallback = await self._fallback(call, tool)
        if isinstance(fallback, str):
            name = tool.spec.fallback
            text = f"{outcome.content}\nIts fallback {name} was not called: {fallback}"
            return replace(outcome, content=text)
        call, instead, leave = fallback
        payload = {"call": f"{self.scope.step}.{call.index}", "tool": tool.spec.name}
        await note(
            self.scope, ev.TOOL_DEGRADED, payload | {"fallback": instead.spec.name, "why": why}
        )
        served, _ = await self._start(call, instead, leave)
        if outcome.fingerprint is None:
            return served
        # The tool that failed was tried: what it touched, it touched.
        marks = tuple(sorted({*served.marks, *outcome.marks}))
        policy = served.policy and {**served.policy, "marks": list(marks)}
        return replace(served, marks=marks, policy=policy)

    async def _fallback(
        self, call: PendingCall, tool: Tool
    ) -> tuple[PendingCall, Tool, Leave] | str:
        """Find what may be called in the place of a tool, or say why nothing may.

        What a person would have to allow is not called: nobody was asked about it.
        """
        assert tool.spec.fallback is not None
        try:
            fallback = self._tool(tool.spec.fallback)
            validate_arguments(fallback.spec, call.arguments)
        except HarnessError as error:
            return error.message
        if _RANK[fallback.spec.effect] > _RANK[tool.spec.effect]:
            return f"its effect is {fallback.spec.effect}, more than {tool.spec.effect}"
        decision = await self._gate.decide(replace(call, name=fallback.spec.name), fallback)
        if decision.verdict is not Verdict.ALLOW:
            reasons = "; ".join(decision.reasons) or "policy does not allow it"
            return f"{reasons} ({decision.verdict})"
        leave = await self._leave(call, fallback)
        if isinstance(leave, Shut):
            return _unavailable(leave, seconds_until(leave, self.scope.clock())).why
        # A yes, a wait and an answer belong to the tool that was asked for, not to its fallback.
        instead = replace(
            call,
            policy=decision.to_json(),
            approval_id=None,
            resume_at=None,
            row=call.row | {"kept": None, "answer": None},
        )
        return instead, fallback, leave

    def _tool(self, name: str) -> Tool:
        if name not in self.scope.allowed:
            known = ", ".join(self.scope.allowed) or "none"
            raise NotFound(
                f"there is no tool {name!r} here; the tools are: {known}",
                code="TOOL_NOT_FOUND",
            )
        return declared_tool(self.scope.registry, name)

    async def _run_write(self, call: PendingCall, tool: Tool, leave: Leave) -> CallOutcome:
        """Run an effect at most once: intent first, result as soon as it is known."""
        scope, held = self.scope, self.scope.held
        attempt_id, begun = uuid4(), False
        ctx = CallContext(scope, call, tool)
        outcome: CallOutcome | None = None
        held.writing += 1
        self.writing.add(call.index)
        try:
            await self._ledger.intend(call, tool, attempt_id)
            begun = True
            ended = await attempt(scope, call, tool, ctx)
            outcome = self.outcomes.of(call, tool, ended, recorded=True)
            won = await self._ledger.record(attempt_id, outcome)
        except asyncio.CancelledError:
            # Say now what is known, rather than leave it to recovery: how it ended, or that it was
            # begun, and the effect may have happened.
            ran = begun and not ctx.queued
            status = CallStatus.UNKNOWN if ran else CallStatus.CANCELLED
            why = "interrupted by a cancel"
            await asyncio.shield(
                self._ledger.give_up(call, attempt_id, status, why)
                if outcome is None
                else self._ledger.record(attempt_id, outcome)
            )
            raise
        finally:
            held.writing -= 1
            self.writing.discard(call.index)
        await tell(scope, call, tool, ended, leave)
        if not won:
            raise LostOwnership(
                "the call's ledger row is another attempt's", run_id=str(scope.run.id)
            )
        return outcome

    async def _unknown(self, call: PendingCall, why: str) -> CallOutcome:
        """Declare a dead owner's attempt unknown, unless its result arrived after all."""
        assert call.attempt_id is not None
        if await self._ledger.give_up(call, call.attempt_id, CallStatus.UNKNOWN, why):
            return self.outcomes.of(call, None, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        fresh = await self._ledger.read(call.index)
        if fresh.is_dead_intent():
            # Another attempt is under way since: it is its owner's, and not ours to judge.
            raise LostOwnership("another attempt is under way", run_id=str(self.scope.run.id))
        return await self._run(fresh)


def _conflict(recorded: CallOutcome, tool: Tool) -> Ended:
    """Word that the ledger holds another call's result in the place of this one."""
    cause = (
        f"the ledger holds the result ({recorded.status}) of another call: version "
        f"{recorded.tool_version} of the tool, which is {tool.spec.version} now, or other "
        "arguments, or another principal. It is not given out, and nothing was run; what that call "
        "changed stands"
    )
    return failed(tool.spec.name, "LEDGER_CONFLICT", cause)


def _unavailable(shut: Shut, left_s: float) -> Ended:
    at = shut.until.isoformat(timespec="seconds").replace("+00:00", "Z")
    cause = (
        f"it failed {shut.failures} times of late (last: {shut.reason}) and is not called for now; "
        f"it is tried again at {at}, in {left_s:.0f} s. Go on without it or use another tool"
    )
    return failed(shut.tool, "TOOL_UNAVAILABLE", cause)
