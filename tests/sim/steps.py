"""The steps that the simulated workers run: models after a script, tools with effects that are
counted outside the store. The order of a tools step is `harness_worker.tools.runner`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from harness_common.core.approval import told_denied, told_expired
from harness_common.core.errors import LostOwnership, Permanent, Transient
from harness_common.core.message import Message, Text, ToolUse
from harness_common.core.step import (
    TOOLS,
    CallOutcome,
    ModelAnswered,
    StepResult,
    ToolsDone,
    ToolsUnknown,
    ToolsWaiting,
    Wait,
)
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.rows import StoredRun
from harness_worker.tools.call import Ended, PendingCall
from tests.sim.store import TERMINAL
from tests.sim.tables import Row
from tests.sim.world import Code, Interrupted

if TYPE_CHECKING:
    from tests.sim.worker import Held, Worker


class CancelAsked(Exception):
    """Nothing more may be started (as `tools.call.CancelAsked`)."""


class StepError(Exception):
    """The attempt failed with a named error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error

    @staticmethod
    def timeout(limit_s: float) -> StepError:
        text = f"the step took longer than {limit_s:g} s"
        return StepError(Transient(text, code="STEP_TIMEOUT"))


@dataclass(frozen=True, slots=True)
class StepContext:
    """The frozen context of one step."""

    worker: Worker
    run: StoredRun
    calls: Sequence[dict[str, Any]]
    started_at: datetime
    held: Held


def run_step_kind(ctx: StepContext) -> Code:
    """Run the step that the run is at."""
    if ctx.run.state.next_kind == TOOLS:
        return (yield from _tools(ctx))
    return (yield from _model(ctx))


def _model(ctx: StepContext) -> Code:
    sim, state = ctx.worker.sim, ctx.run.state
    sim.audit.model_called(ctx.run.id, ctx.held.task)
    turn = sim.plans[ctx.run.id].turn(state.turn)
    yield turn.model_s
    attempt = sim.attempts[ctx.run.id, state.turn] = sim.attempts[ctx.run.id, state.turn] + 1
    if attempt <= len(turn.errors):
        raise StepError(turn.errors[attempt - 1])
    uses = tuple(
        ToolUse(f"call_{i}", call.tool, {"i": i, "s": call.s, **call.more})
        for i, call in enumerate(turn.calls)
    )
    message = Message("assistant", (Text(f"turn {state.turn}"), *uses))
    finish = turn.finish or ("tool_calls" if uses else "stop")
    return ModelAnswered(message, finish, "scripted/sim", 10, 5, cost_usd=0.01)


def _tools(ctx: StepContext) -> Code:
    """As `steps.tools.run`: reads side by side, writes one after another."""
    calls = [PendingCall.from_row(row) for row in ctx.calls]
    runner = _Runner(ctx)
    outcomes: list[CallOutcome] = []
    for is_write, group in groupby(calls, lambda c: c.name.startswith("write")):
        if is_write:
            for call in group:
                outcomes.append((yield from runner.run(call)))
                if outcomes[-1].status is CallStatus.UNKNOWN:
                    break
        else:
            for call in group:
                outcome = yield from runner.run(call)
                outcomes.append(outcome)
        if any(o.status is CallStatus.UNKNOWN for o in outcomes):
            break
    return _result(outcomes)


def _result(outcomes: list[CallOutcome]) -> StepResult:
    """As `steps.tools._result`."""
    ended = tuple(o for o in outcomes if o.wait is None)
    unknown = tuple(o.index for o in outcomes if o.status is CallStatus.UNKNOWN)
    if unknown:
        return ToolsUnknown(ended, unknown)
    if any(o.wait is not None for o in outcomes):
        return ToolsWaiting(tuple(outcomes))
    return ToolsDone(ended)


class _Runner:
    """As `tools.runner.ToolRunner`, with the ledger of `tools.ledger.Ledger`."""

    def __init__(self, ctx: StepContext) -> None:
        self.ctx, self.worker, self.sim = ctx, ctx.worker, ctx.worker.sim
        self.key: dict[str, Any] = {"run_id": ctx.run.id, "step": ctx.run.state.step + 1}

    def run(self, call: PendingCall) -> Code:
        held = self.ctx.held
        if call.status in ENDED:
            return call.recorded()
        if call.status is CallStatus.UNKNOWN:
            return self._outcome(call, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        if call.is_dead_intent() and self.sim.mutate != "dead_intent":
            return (yield from self._unknown(call))
        approval_id = None
        if call.name == "write_ask":
            approval_id = yield from self._seek(call)
            if isinstance(approval_id, Ended):
                return self._outcome(call, approval_id)
        if call.name.startswith("write"):
            return (yield from self._run_write(call, approval_id))
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        ended = yield from self._attempt(call)
        if ended.error_type == "TRANSIENT":  # a read is tried twice
            ended = yield from self._attempt(call)
        return self._outcome(call, ended)

    def _seek(self, call: PendingCall) -> Code:
        """As `tools.approvals.Approvals.seek`."""
        if self.sim.mutate == "approval":
            return None
        run_id, step = self.key["run_id"], self.key["step"]
        row = yield self.worker.pg(
            lambda: self.worker.store.approval_seek(run_id, step, call.index)
        )
        status = row["status"] if row is not None else None
        if status == "approved":
            return row["id"]
        if status == "denied":
            return Ended(CallStatus.REJECTED, told_denied(call.name, ""), "APPROVAL_DENIED")
        if status == "expired":
            return Ended(CallStatus.REJECTED, told_expired(call.name), "APPROVAL_EXPIRED")
        if status == "pending":
            wait = _approval(call, row["id"], row["expires_at"], None)
            return Ended(CallStatus.AWAITING_APPROVAL, "approval", wait=wait)
        until = self.worker.clock() + timedelta(seconds=call.arguments["expires_s"])
        asked = {"id": self.sim.world.uuid(), "step": step, "idx": call.index, "expires_at": until}
        wait = _approval(call, asked["id"], until, asked)
        return Ended(CallStatus.AWAITING_APPROVAL, "approval", wait=wait)

    def _run_write(self, call: PendingCall, approval_id: Any = None) -> Code:
        held, won = self.ctx.held, True
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        if self.sim.mutate == "intent":
            return self._outcome(call, (yield from self._attempt(call)))
        attempt_id, begun = self.sim.world.uuid(), False
        held.writing += 1
        try:
            yield from self._intend(call, attempt_id, approval_id)
            begun = True
            ended = yield from self._attempt(call)
            won = yield from self._record(call, attempt_id, ended)
        except Interrupted:
            status = CallStatus.UNKNOWN if begun else CallStatus.CANCELLED
            yield from self._give_up(call, attempt_id, status)
            held.writing -= 1
            raise
        except (DatabaseUnavailable, CancelAsked):
            held.writing -= 1
            raise
        held.writing -= 1
        if not won:
            raise LostOwnership("the call's ledger row is another attempt's")
        return self._outcome(call, ended, recorded=True)

    def _unknown(self, call: PendingCall) -> Code:
        if (yield from self._give_up(call, call.attempt_id, CallStatus.UNKNOWN)):
            return self._outcome(call, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        key = self.key
        row = yield self.worker.pg(
            lambda: self.worker.store.call_read(key["run_id"], key["step"], call.index)
        )
        fresh = PendingCall.from_row(row)
        if fresh.is_dead_intent():
            raise LostOwnership("another attempt is under way", run_id=str(key["run_id"]))
        return (yield from self.run(fresh))

    def _attempt(self, call: PendingCall) -> Code:
        """Do what the tool does; a write's effect happens in the middle of it."""
        sim, now = self.sim, self.worker.clock()
        match call.name:
            case "wait":
                return self._wait(call, now)
            case "ask":
                return self._ask(call, now)
            case "spawn":
                return (yield from start_or_join(self.ctx, call))
            case "kill" if sim.kills(self.ctx.run.id, call.arguments["times"]):
                yield _seconds(call)
                self.worker.die()
                yield 1.0  # nobody is left to say more
            case "flaky" if sim.flip(self.ctx.run.id, call.index):
                yield _seconds(call) / 2
                return Ended(CallStatus.FAILED, "connection refused", "TRANSIENT")
            case "write_refused":
                yield _seconds(call)
                return Ended(CallStatus.REJECTED, "no such account", "INVALID")
        yield _seconds(call) / 2
        if call.name.startswith("write"):
            asks = call.name == "write_ask"
            sim.audit.effect(self.ctx.run.id, self.key["step"], call.index, asks=asks)
        yield _seconds(call) / 2
        if call.name == "write_unsure":
            return Ended(CallStatus.UNKNOWN, "the line went dead", "UNKNOWN_OUTCOME")
        return Ended(CallStatus.SUCCEEDED, "done", cost_usd=0.001, duration_ms=1.0)

    def _wait(self, call: PendingCall, now: datetime) -> Ended:
        """A time that was set before stays, as in `ToolRunner._wait`."""
        if call.resume_at is not None and call.resume_at <= now:
            return Ended(CallStatus.SUCCEEDED, "waited")
        until = call.resume_at or now + timedelta(seconds=_seconds(call))
        return Ended(CallStatus.RUNNING, "", wait=Wait(call.index, "time", until))

    def _ask(self, call: PendingCall, now: datetime) -> Ended:
        until = call.resume_at if call.resume_at is not None and call.resume_at > now else None
        limit_s = call.arguments.get("timeout_s")
        if until is None and limit_s is not None:
            until = now + timedelta(seconds=limit_s)
        return Ended(CallStatus.RUNNING, "", wait=Wait(call.index, "input", until, {"q": "?"}))

    def _intend(self, call: PendingCall, attempt_id: Any, approval_id: Any) -> Code:
        run = self.ctx.run
        params = self.key | {
            "idx": call.index,
            "version": run.version,
            "fence": run.fence,
            "claim_id": run.claim_id,
            "attempt_id": attempt_id,
            "prior_attempt_id": call.attempt_id,
            "from_status": [str(call.status)],
            "effect": "write",
            "tool_version": "1",
            "approval_id": approval_id,
        }
        rows = yield self.worker.pg(lambda: self.worker.store.call_intent(params))
        if not rows:
            raise CancelAsked

    def _record(self, call: PendingCall, attempt_id: Any, ended: Ended) -> Code:
        params = self.key | {
            "idx": call.index,
            "attempt_id": attempt_id,
            "status": str(ended.status),
            "result": ended.content,
            "error_type": ended.error_type,
            "trust": "trusted",
            "artifacts": [],
            "duration_ms": ended.duration_ms,
            "cost_usd": ended.cost_usd,
            "resume_at": ended.resume_at,
            "evidence": ended.content,
        }
        give_up = self.sim.world.s + 60.0
        while True:
            try:
                rows = yield self.worker.pg(lambda: self.worker.store.call_result(params))
            except DatabaseUnavailable:
                if self.sim.world.s > give_up:
                    raise
                yield 0.2
                continue
            return bool(rows[0]["won"])

    def _give_up(self, call: PendingCall, attempt_id: Any, status: CallStatus) -> Code:
        params = self.key | {
            "idx": call.index,
            "attempt_id": attempt_id,
            "status": str(status),
            "why": "gone",
        }
        rows = yield self.worker.pg(lambda: self.worker.store.call_give_up(params))
        return bool(rows)

    def _outcome(self, call: PendingCall, ended: Ended, *, recorded: bool = False) -> CallOutcome:
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=ended.status,
            content=ended.content,
            error_type=ended.error_type,
            duration_ms=ended.duration_ms,
            cost_usd=ended.cost_usd,
            attempt=call.attempt + (ended.status is not CallStatus.AWAITING_APPROVAL),
            effect="write" if call.name.startswith("write") else "read",
            tool_version="1",
            resume_at=None if ended.status is CallStatus.AWAITING_APPROVAL else ended.resume_at,
            wait=ended.wait,
            input_tokens=ended.input_tokens,
            output_tokens=ended.output_tokens,
            recorded=recorded,
        )


def start_or_join(ctx: StepContext, call: PendingCall) -> Code:
    """As `tools.children.start_or_join`: find the call's child, start it if there is none."""
    worker, run_id, step = ctx.worker, ctx.run.id, ctx.run.state.step + 1
    sim, store = worker.sim, worker.store

    def find() -> Row | None:
        return None if sim.mutate == "child" else store.child(run_id, step, call.index)

    child = yield worker.pg(find)
    if child is None:
        version, ready, child = yield worker.pg(lambda: sim.start_child(ctx.run, step, call.index))
        if ready:
            worker.bus.ring(worker.proc, child["id"], version)
        else:
            worker.bus.nudge(worker.proc)
        child = yield worker.pg(lambda: store.child(run_id, step, call.index))
    if child["status"] not in TERMINAL:
        return Ended(CallStatus.RUNNING, "", wait=Wait(call.index, "child", None, {}))
    spent = {n: child[n] for n in ("cost_usd", "input_tokens", "output_tokens")}
    if child["status"] == "succeeded":
        return Ended(CallStatus.SUCCEEDED, f"{child['id'].hex} {child['output']}", **spent)
    if call.arguments["on_failure"] == "fail":
        raise StepError(Permanent("a child failed", code="CHILD_FAILED"))
    return Ended(CallStatus.FAILED, f"{child['id'].hex} failed", "CHILD_FAILED", **spent)


def _approval(call: PendingCall, approval_id: Any, until: datetime, row: Any) -> Wait:
    about = {"approval": approval_id.hex, "tool": call.name}
    return Wait(call.index, "approval", until, about, row)


def _seconds(call: PendingCall) -> float:
    return float(call.arguments["s"])
