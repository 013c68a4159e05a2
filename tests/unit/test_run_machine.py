"""The run's machine against everything that can happen to it at once: a stateful property test.

The store is a model in memory: one row, the compare-and-set of `store/sql/commit.sql` and
`claim.sql`, and `settle`'s answer to
a commit that was refused. Hypothesis plays workers, people, timers, deaths and lost doorbells
against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.errors import IllegalTransition
from harness_common.core.inputs import (
    Admit,
    CancelRequested,
    Input,
    OwnerLost,
    Released,
    StepDone,
    StepFailed,
    TimerDue,
)
from harness_common.core.message import Message, Text, ToolUse
from harness_common.core.replay import initial_content, state_at
from harness_common.core.retry import RetryRule
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, RunState, Status, Transition, content, delta, wake_at
from harness_common.core.step import (
    CallOutcome,
    Failure,
    ModelAnswered,
    StepCancelled,
    StepResult,
    ToolsDone,
    ToolsUnknown,
    ToolsWaiting,
    Wait,
)
from harness_common.core.tool_call import CallStatus

RING_S, HOLD_S = 5.0, 900.0
START = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass
class Row:
    """What Postgres holds of one run."""

    state: RunState
    fence: int = 0
    claim_id: int | None = None
    last_input_n: int = 0
    next_seq: int = 1
    wake_at: datetime | None = None
    events: list[tuple[int, str]] = field(default_factory=list)
    checkpoints: list[tuple[int, dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    messages: int = 1
    ends: int = 0
    doorbells: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """What a writer read: the row's compared columns, and the state it computes from."""

    state: RunState
    fence: int
    claim_id: int | None
    last_input_n: int


class Store:
    """The one writer, in memory."""

    def __init__(self) -> None:
        self.now = START
        self.row = Row(
            RunState(messages=1, limits=Limits(max_turns=8), retry=RetryRule(4, 1, 2, 8))
        )
        self.fences: list[int] = []
        self.claims = 0

    def read(self) -> Seen:
        return Seen(self.row.state, self.row.fence, self.row.claim_id, self.row.last_input_n)

    def claim(self, version: int) -> Seen | None:
        row = self.row
        ready = row.state.status is Status.RUNNING and row.claim_id is None
        if not ready or row.state.version != version:
            return None
        self.claims += 1
        row.fence += 1
        row.claim_id = self.claims
        row.state = replace(row.state, claimed=True)
        row.wake_at = self.now + timedelta(seconds=HOLD_S)
        self.fences.append(row.fence)
        return self.read()

    def commit(self, seen: Seen, done: Transition, *, outside: int = 0) -> bool:
        row, before, after = self.row, seen.state, done.state
        compared = (before.version, seen.fence, seen.claim_id, seen.last_input_n)
        current = (row.state.version, row.fence, row.claim_id, row.last_input_n)
        if compared != current or before.cancel_requested != row.state.cancel_requested:
            return False
        assert row.state.status not in TERMINAL, "INV4: something was written after the end"
        moved = (before.status, before.step) != (after.status, after.step)
        assert after.version == before.version + moved
        row.state = after
        row.claim_id = seen.claim_id if after.claimed else None
        row.last_input_n += outside
        row.wake_at = wake_at(after, self.now, RING_S)
        row.messages += len(done.messages)
        for event in done.events:
            row.events.append((row.next_seq, event.type))
            row.next_seq += 1
        if after.step != before.step:
            assert after.step == before.step + 1
            row.checkpoints.append((after.step, delta(before, after), content(after)))
        row.ends += after.status in TERMINAL
        if done.ready:
            row.doorbells.append(after.version)
        return True

    def settle(self, seen: Seen, one: Input) -> bool:
        """Do as `store.apply.settle`: what came from outside meanwhile never costs the step."""
        while True:
            if self.commit(seen, advance(seen.state, [one], self.now)):
                return True
            fresh = self.read()
            if (fresh.fence, fresh.claim_id) != (seen.fence, seen.claim_id):
                return False
            seen = fresh


model_results = st.builds(
    lambda tools, finish, usd: ModelAnswered(
        Message("assistant", (Text("x"), *(ToolUse(f"c{i}", "f", {}) for i in range(tools)))),
        "tool_calls" if tools else finish,
        "m",
        3,
        2,
        cost_usd=usd,
    ),
    st.sampled_from([0, 1, 1, 2]),
    st.sampled_from(["pause"] * 4 + ["stop", "length", "refusal"]),
    st.sampled_from([0.0, 0.25]),
)
call = CallOutcome(0, "c0", "f", CallStatus.SUCCEEDED, "ok", cost_usd=0.125)
tool_results = st.sampled_from(["done", "done", "done", "waiting", "unknown"])
failures = st.builds(
    StepFailed,
    st.sampled_from(
        [
            Failure("transient", "T", "t"),
            Failure("transient", "T", "t"),
            Failure("limited", "L", "l", 2.0),
            Failure("limited", "L", "l"),
            Failure("permanent", "P", "p"),
        ]
    ),
    st.just(START),
    st.floats(0, 1, exclude_max=True),
)


class RunMachine(RuleBasedStateMachine):
    """Everybody at once."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.held: dict[int, Seen] = {}  # what each worker believes that it owns
        self.ended: RunState | None = None
        self.finished_steps = 0
        self.admit()

    # ── the scheduler ──

    @precondition(lambda self: self.store.row.state.status is Status.QUEUED)
    @rule()
    def admit(self) -> None:
        seen = self.store.read()
        assert self.store.commit(seen, advance(seen.state, [Admit()], self.store.now))

    @precondition(lambda self: self.store.row.state.status is Status.DELAYED)
    @rule(inline=st.booleans())
    def timer(self, inline: bool) -> None:
        due = self.store.row.wake_at
        assert due is not None
        assert due == self.store.row.state.not_before
        seen = self.store.read()
        if due > self.store.now:
            try:
                advance(seen.state, [TimerDue()], self.store.now)
            except IllegalTransition:
                self.store.now = due
            else:
                raise AssertionError("INV14: a timer rang before its time")
        inputs: list[Input] = [TimerDue(), *([Admit()] if inline else [])]
        assert self.store.commit(seen, advance(seen.state, inputs, self.store.now))

    @precondition(lambda self: self.store.row.claim_id is not None)
    @rule()
    def owner_dies(self) -> None:
        seen = self.store.read()
        lost = advance(seen.state, [OwnerLost("w", "killed")], self.store.now)
        assert self.store.commit(seen, lost)
        # The dead process may not know that it is dead: `held` keeps its belief.

    @precondition(
        lambda self: (
            self.store.row.state.status is Status.RUNNING and self.store.row.claim_id is None
        )
    )
    @rule()
    def a_doorbell_is_lost_and_rung_again(self) -> None:
        row = self.store.row
        assert row.wake_at is not None
        row.doorbells.clear()
        self.store.now = max(self.store.now, row.wake_at)
        row.wake_at = self.store.now + timedelta(seconds=RING_S)
        row.doorbells.append(row.state.version)

    # ── workers ──

    @precondition(lambda self: bool(self.store.row.doorbells))
    @rule(worker=st.integers(1, 3), keep_message=st.booleans())
    def answer_a_doorbell(self, worker: int, keep_message: bool) -> None:
        bells = self.store.row.doorbells
        version = bells[-1] if keep_message else bells.pop()
        before = self.store.row.fence
        seen = self.store.claim(version)
        if seen is not None:
            assert seen.fence == before + 1
            self.held[worker] = seen

    @rule(worker=st.integers(1, 3), version=st.integers(0, 8))
    def answer_a_stale_or_invented_doorbell(self, worker: int, version: int) -> None:
        state, owner = self.store.row.state, self.store.row.claim_id
        seen = self.store.claim(version)
        may = state.status is Status.RUNNING and owner is None and state.version == version
        assert (seen is not None) == may
        if seen is not None:
            self.held[worker] = seen

    def _settle(self, worker: int, one: Input) -> bool:
        seen = self.held.pop(worker)
        current = self.store.row
        owns = (seen.fence, seen.claim_id) == (current.fence, current.claim_id)
        before = replace(current.state)
        written = current.messages
        committed = self.store.settle(seen, one)
        # INV6 and INV20 in one: whoever owns the run commits, whatever came meanwhile; nobody else
        # does.
        assert committed == owns
        if not owns:
            assert self.store.row.state == before
            assert self.store.row.messages == written
        return committed

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def finish_a_step(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        result = self._draw_result(data, self.held[worker].state)
        step, messages = self.store.row.state.step, self.store.row.messages
        if self._settle(worker, StepDone(result, self.store.now)):
            counts = isinstance(result, ModelAnswered | ToolsDone)
            assert self.store.row.state.step == step + counts
            assert self.store.row.messages == messages + counts
            self.finished_steps += counts

    @staticmethod
    def _draw_result(data: st.DataObject, state: RunState) -> StepResult:
        if data.draw(st.integers(0, 3 if state.cancel_requested else 9)) == 0:
            return StepCancelled()
        if state.next_kind == "model":
            return data.draw(model_results)
        kind = data.draw(tool_results)
        if kind == "waiting":
            until = START + timedelta(days=data.draw(st.integers(0, 2)))
            waiting = Wait(call.index, "time", until)
            return ToolsWaiting((replace(call, status=CallStatus.RUNNING, wait=waiting),))
        return ToolsUnknown((call,), (1,)) if kind == "unknown" else ToolsDone((call,))

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data(), failed=failures)
    def fail_a_step(self, data: st.DataObject, failed: StepFailed) -> None:
        self._settle(data.draw(st.sampled_from(sorted(self.held))), failed)

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def release_a_step(self, data: st.DataObject) -> None:
        self._settle(data.draw(st.sampled_from(sorted(self.held))), Released("the worker stops"))

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def commit_with_a_stale_read(self, data: st.DataObject) -> None:
        """A raw commit, without reading again: only what was seen exactly is written."""
        seen = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        fresh = self.store.read()
        one = Released("x")
        if seen == fresh:
            return
        before = replace(self.store.row.state)
        assert not self.store.commit(seen, advance(seen.state, [one], self.store.now))
        assert self.store.row.state == before

    # ── people ──

    @precondition(lambda self: self.store.row.state.status not in TERMINAL)
    @rule(often=st.integers(0, 5))
    def cancel(self, often: int) -> None:
        seen = self.store.read()
        owned = seen.claim_id is not None
        if seen.state.cancel_requested or (often and not owned):
            return  # most cancels find an owner: the others end the story at once
        done = advance(seen.state, [CancelRequested("ann")], self.store.now)
        assert self.store.commit(seen, done, outside=1)
        assert self.store.row.state.cancel_requested
        assert (self.store.row.state.status in TERMINAL) == (not owned)
        assert self.store.row.claim_id == seen.claim_id or not owned

    @precondition(lambda self: self.store.row.claim_id is not None)
    @rule()
    def an_input_that_says_nothing_yet(self) -> None:
        """A message or an approval over a running step: a row in `inputs` and a count, nothing
        else.
        """
        self.store.row.last_input_n += 1

    @rule(seconds=st.integers(1, 100))
    def time_passes(self, seconds: int) -> None:
        self.store.now += timedelta(seconds=seconds)

    # ── what always holds ──

    @invariant()
    def events_have_no_gap(self) -> None:
        """INV5."""
        row = self.store.row
        assert [n for n, _ in row.events] == list(range(1, row.next_seq))

    @invariant()
    def every_claim_raised_the_fence(self) -> None:
        assert self.store.fences == list(range(1, len(self.store.fences) + 1))

    @invariant()
    def terminal_is_final_and_written_once(self) -> None:
        """INV4."""
        row = self.store.row
        ended = row.state.status in TERMINAL
        assert row.ends == ended
        assert sum(t in ev.TERMINAL_EVENTS for _, t in row.events) == ended
        if ended:
            assert row.wake_at is None
            assert row.claim_id is None
            assert row.state.stop_reason
            self.ended = self.ended or row.state
            assert row.state == self.ended

    @invariant()
    def somebody_will_look(self) -> None:
        row = self.store.row
        if row.state.status is Status.RUNNING:
            assert row.wake_at is not None
        if row.state.status is Status.DELAYED:
            assert row.wake_at == row.state.not_before
            assert row.wake_at is not None
        assert row.state.claimed == (row.claim_id is not None)
        assert row.claim_id is None or row.state.status is Status.RUNNING
        assert not (row.state.cancel_requested and row.claim_id is None) or (
            row.state.status in TERMINAL
        ), "a cancelled run that nobody owns must have ended"

    @invariant()
    def each_step_was_committed_once(self) -> None:
        """INV2."""
        row = self.store.row
        assert [n for n, _, _ in row.checkpoints] == list(range(1, row.state.step + 1))
        assert row.state.step == self.finished_steps
        assert row.state.messages == row.messages

    @invariant()
    def the_checkpoints_replay_to_what_is_stored(self) -> None:
        start = initial_content() | {"messages": 1}
        deltas = [d for _, d, _ in self.store.row.checkpoints]
        for step, _, whole in self.store.row.checkpoints:
            assert content(state_at(start, deltas[:step], step)) == whole
        if self.store.row.checkpoints:
            assert content(self.store.row.state) == self.store.row.checkpoints[-1][2]


TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
