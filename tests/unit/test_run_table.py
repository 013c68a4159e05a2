"""Every (status, input type) pair, and what each rule makes of each step result."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness_common.core import events as ev
from harness_common.core.budget import Limits, Spent
from harness_common.core.errors import IllegalTransition
from harness_common.core.inputs import (
    Admit,
    ApprovalDecided,
    CancelRequested,
    ChildrenDone,
    EffectsResolved,
    Input,
    InputGiven,
    OwnerLost,
    PauseRequested,
    Released,
    ResumeRequested,
    Steered,
    StepDone,
    StepFailed,
    TimerDue,
)
from harness_common.core.message import Message, Text, ToolResult, ToolUse
from harness_common.core.retry import RetryRule
from harness_common.core.rules import SUSPECT_DEATHS, TABLE, advance
from harness_common.core.run import TERMINAL, RunState, Status, content, holds_slot, wake_at
from harness_common.core.step import (
    CallOutcome,
    Compacted,
    ContextFull,
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

NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)


def say(
    text: str = "done", *, tools: int = 0, finish: str = "stop", tokens: int = 5, usd: float = 0.0
) -> ModelAnswered:
    uses = tuple(ToolUse(f"call_{i}", "look", {"i": i}) for i in range(tools))
    return ModelAnswered(
        Message("assistant", (Text(text), *uses)),
        finish,  # type: ignore[arg-type]
        "scripted/x",
        input_tokens=tokens,
        output_tokens=1,
        cost_usd=usd,
    )


def outcome(
    index: int = 0, status: CallStatus = CallStatus.SUCCEEDED, **more: object
) -> CallOutcome:
    return CallOutcome(index, f"call_{index}", "look", status, "ok", **more)  # type: ignore[arg-type]


def waits(until: datetime = LATER) -> ToolsWaiting:
    """One call has ended and one waits for a time."""
    return ToolsWaiting(
        (outcome(), outcome(1, CallStatus.RUNNING, wait=Wait(1, "time", until), resume_at=until))
    )


QUESTION = {"for": "input", "calls": [{"call": "1.0", "kind": "input", "index": 0, "until": None}]}


TO_APPROVE = {
    "for": "approval",
    "calls": [
        *QUESTION["calls"],
        {"call": "1.1", "kind": "approval", "index": 1, "until": None, "approval": "appr_2"},
    ],
}
WAITING = {Status.WAITING_INPUT: QUESTION, Status.WAITING_APPROVAL: TO_APPROVE}


def running(**more: object) -> RunState:
    return RunState(status=Status.RUNNING, version=7, step=3, started=True, claimed=True, **more)  # type: ignore[arg-type]


def types(transition) -> list[str]:
    return [e.type for e in transition.events]


SAMPLES: dict[type[Input], Input] = {
    Admit: Admit(),
    StepDone: StepDone(say(tools=1, finish="tool_calls"), NOW),
    StepFailed: StepFailed(Failure("transient", "X", "x"), NOW),
    TimerDue: TimerDue(),
    CancelRequested: CancelRequested("ann"),
    OwnerLost: OwnerLost("w", "killed"),
    Released: Released("stops"),
    PauseRequested: PauseRequested("ann"),
    ResumeRequested: ResumeRequested("ann"),
    InputGiven: InputGiven("ann", 0, "yes"),
    Steered: Steered("ann", "look at the other file"),
    ChildrenDone: ChildrenDone(),
    EffectsResolved: EffectsResolved("ann"),
    ApprovalDecided: ApprovalDecided("ann", "appr_1", 0, "pay", "approved"),
}

# Columns in the order of SAMPLES: Admit, StepDone, StepFailed, TimerDue, CancelRequested,
# OwnerLost, Released, PauseRequested, ResumeRequested, InputGiven, Steered, ChildrenDone,
# EffectsResolved, ApprovalDecided.
EXPECTED = {
    "queued": "L . . L L . . L L . L . . L",
    "running": ". L L L L L L L L . L . . L",
    "waiting_approval": ". . . L L . . L L L L . L L",
    "waiting_input": ". . . L L . . L L L L . . L",
    "waiting_tool": ". . . L L . . L L . L . . L",
    "waiting_children": ". . . L L . . L L . L L . L",
    "delayed": ". . . L L . . L L . L . . L",
    "paused": ". . . L L . . . L . L . . L",
    "succeeded": ". . . . . . . . . . . . . .",
    "failed": ". . . . . . . . . . . . . .",
    "cancelled": ". . . . . . . . . . . . . .",
}
PAIRS = [
    (Status(status), kind, mark == "L")
    for status, row in EXPECTED.items()
    for kind, mark in zip(SAMPLES, row.split(), strict=True)
]


def test_the_written_out_table_is_complete():
    assert {Status(s) for s in EXPECTED} == set(Status)
    assert set(SAMPLES) == set(Input.__args__)
    assert set(TABLE) == {(s, k) for s, k, legal in PAIRS if legal}


@pytest.mark.parametrize(
    ("status", "kind", "legal"), PAIRS, ids=[f"{s}-{k.__name__}" for s, k, _ in PAIRS]
)
def test_every_pair_of_status_and_input(status, kind, legal):
    state = RunState(
        status=status,
        version=4,
        started=True,
        claimed=status is Status.RUNNING and kind is not TimerDue,
        pause_requested=kind is ResumeRequested,
        limits=Limits(deadline=NOW) if kind is TimerDue else Limits(),
        waiting=WAITING.get(status),
    )
    if legal:
        assert advance(state, [SAMPLES[kind]], NOW).events or kind in {Released, ChildrenDone}
    else:
        with pytest.raises(IllegalTransition) as caught:
            advance(state, [SAMPLES[kind]], NOW)
        assert caught.value.detail == {"status": str(status), "input": kind.__name__}


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_terminal_is_final(status):
    """INV4: no input of any kind moves a run that has ended."""
    for one in SAMPLES.values():
        with pytest.raises(IllegalTransition):
            advance(RunState(status=status), [one], NOW)


def test_a_fold_that_ends_the_run_refuses_the_inputs_after_it():
    """INV4: nor does an input later in the same fold."""
    with pytest.raises(IllegalTransition):
        advance(running(), [StepDone(say(), NOW), CancelRequested("ann")], NOW)


def test_advance_does_not_touch_its_argument_and_no_input_changes_nothing():
    state = running()
    copy = replace(state)
    advance(state, [SAMPLES[StepDone]], NOW)
    assert state == copy
    assert advance(state, [], NOW).state == state


def test_one_version_for_a_fold_of_several_transitions():
    state = RunState(status=Status.DELAYED, version=9, started=True, not_before=NOW)
    nxt = advance(state, [TimerDue(), Admit()], NOW).state
    assert (nxt.status, nxt.version) == (Status.RUNNING, 10)


@pytest.mark.parametrize("one", [CancelRequested("ann"), OwnerLost("w", "x"), Released("x")])
def test_inputs_that_change_neither_status_nor_step_leave_the_version(one):
    assert advance(running(), [one], NOW).state.version == 7


@pytest.mark.parametrize(
    ("status", "claimed", "expected"),
    [
        (Status.QUEUED, False, None),
        (Status.RUNNING, False, NOW + timedelta(seconds=5)),
        (Status.RUNNING, True, NOW + timedelta(seconds=5)),
        (Status.DELAYED, False, LATER),
        (Status.WAITING_APPROVAL, False, LATER),
        (Status.WAITING_INPUT, False, LATER),
        (Status.WAITING_TOOL, False, LATER),
        (Status.WAITING_CHILDREN, False, NOW + timedelta(seconds=5)),
        (Status.PAUSED, False, None),
        (Status.SUCCEEDED, False, None),
        (Status.FAILED, False, None),
        (Status.CANCELLED, False, None),
    ],
)
def test_wake_at(status, claimed, expected):
    assert wake_at(RunState(status=status, claimed=claimed, not_before=LATER), NOW, 5) == expected
    assert holds_slot(RunState(status=status)) is (status is Status.RUNNING)


# ── admission and timers ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("started", "event"), [(False, ev.RUN_STARTED), (True, ev.RUN_RESUMED)], ids=["new", "again"]
)
def test_admission_makes_a_run_ready(started, event):
    done = advance(RunState(started=started, step=2, next_kind="tools"), [Admit()], NOW)
    assert done.state.status is Status.RUNNING
    assert done.state.started
    assert done.ready
    assert types(done) == [event]
    assert done.events[0].payload == {"step": 2, "kind": "tools"}


@pytest.mark.parametrize(
    ("status", "one"), [(Status.QUEUED, Admit()), (Status.DELAYED, TimerDue())]
)
def test_not_before_gates_whatever_wakes_the_run(status, one):
    """INV14: nothing starts before its time, not even a microsecond."""
    state = RunState(status=status, not_before=NOW + timedelta(microseconds=1))
    with pytest.raises(IllegalTransition, match="not before"):
        advance(state, [one], NOW)
    on_time = advance(replace(state, not_before=NOW), [one], NOW).state
    assert on_time.not_before is None


@pytest.mark.parametrize("status", [Status.QUEUED, Status.PAUSED, Status.WAITING_APPROVAL])
def test_a_look_at_a_run_that_waits_for_no_time_only_sets_when_to_look_again(status):
    """One that was to be looked at by mistake would be found due at every tick, and skipped."""
    state = RunState(status=status, version=3)
    done = advance(state, [TimerDue()], NOW)
    assert (done.state, done.events) == (state, ())
    assert wake_at(done.state, NOW, 5) is None


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────

UNOWNED = [s for s in Status if s not in TERMINAL and s is not Status.RUNNING]


@pytest.mark.parametrize("status", UNOWNED)
def test_cancel_ends_a_run_that_nobody_owns(status):
    done = advance(RunState(status=status, version=2), [CancelRequested("ann", "why")], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.CANCELLED, "cancelled")
    assert done.state.version == 3
    assert types(done) == [ev.RUN_CANCEL_REQUESTED, ev.RUN_CANCELLED]
    assert done.events[0].payload == {"by": "ann", "reason": "why"}


def test_cancel_of_a_rung_but_unclaimed_run_ends_it():
    done = advance(replace(running(), claimed=False), [CancelRequested("ann")], NOW)
    assert done.state.status is Status.CANCELLED


def test_cancel_of_an_owned_run_only_leaves_a_flag_and_is_recorded_once():
    first = advance(running(), [CancelRequested("ann")], NOW)
    assert first.state == replace(running(), cancel_requested=True)
    assert types(first) == [ev.RUN_CANCEL_REQUESTED]
    assert not first.ready
    again = advance(first.state, [CancelRequested("bob")], NOW)
    assert again.events == ()


RESULTS: dict[str, StepResult] = {
    "more tools": say(tools=2, finish="tool_calls"),
    "final": say(),
    "length": say(finish="length"),
    "pause": say(finish="pause"),
    "tools": ToolsDone((outcome(),)),
    "waiting": waits(),
    "unknown": ToolsUnknown((outcome(),), (1,)),
    "stopped": StepCancelled((outcome(),)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_after_a_cancel_the_result_is_kept_and_the_run_ends(name):
    """INV20: messages and outcomes of the finished step are in the transition. INV4: exactly one
    end event.
    """
    result = RESULTS[name]
    kind = "model" if isinstance(result, ModelAnswered) else "tools"
    done = advance(running(cancel_requested=True, next_kind=kind), [StepDone(result, NOW)], NOW)
    assert done.state.status is Status.CANCELLED
    assert done.state.stop_reason == "cancelled"
    assert types(done).count(ev.RUN_CANCELLED) == 1
    assert types(done)[-1] == ev.RUN_CANCELLED
    assert done.state.version == 8
    if isinstance(result, ModelAnswered):
        assert done.messages == (result.message,)
        assert done.state.step == 4
        assert done.proposed == bool(result.message.tool_uses())
    else:
        assert not isinstance(result, ContextFull | Compacted)  # tests/unit/test_context_step.py
        assert done.outcomes == result.outcomes


def test_a_refusal_fails_even_when_a_cancel_came():
    state = running(cancel_requested=True)
    done = advance(state, [StepDone(say(finish="refusal"), NOW)], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "refusal")


@pytest.mark.parametrize(
    "one",
    [
        StepFailed(Failure("transient", "X", "x"), NOW),
        StepFailed(Failure("limited", "X", "x", 5.0), NOW),
        StepFailed(Failure("permanent", "X", "x"), NOW),
        OwnerLost("w", "x"),
        Released("x"),
    ],
)
def test_after_a_cancel_every_other_end_of_a_step_ends_the_run(one):
    done = advance(running(cancel_requested=True), [one], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.CANCELLED, "cancelled")
    assert not done.state.claimed
    assert types(done)[-1] == ev.RUN_CANCELLED


def test_a_cancel_folded_after_a_proposal_keeps_the_proposal():
    """A retry of the cancelled run goes on with the tools; without ledger rows it would have
    nothing to run.
    """
    inputs: list[Input] = [
        StepDone(say(tools=1, finish="tool_calls"), NOW),
        CancelRequested("ann"),
    ]
    done = advance(running(), inputs, NOW)
    assert done.state.status is Status.CANCELLED
    assert done.state.next_kind == "tools"
    assert done.proposed


# ── pause and resume ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [RunState(), replace(running(), claimed=False)])
def test_a_run_that_nobody_works_on_rests_at_once(state):
    done = advance(state, [PauseRequested("ann", "lunch")], NOW)
    assert done.state.status is Status.PAUSED
    assert not holds_slot(done.state)
    assert types(done) == [ev.RUN_PAUSE_REQUESTED, ev.RUN_PAUSED]
    again = advance(done.state, [ResumeRequested("ann")], NOW)
    assert (again.state.status, again.state.pause_requested) == (Status.QUEUED, False)


@pytest.mark.parametrize("name", RESULTS)
def test_a_pause_over_a_step_keeps_its_result_and_rests_after_it(name):
    """INV20: the finished step counts; a run that waits or has ended does not rest."""
    result = RESULTS[name]
    kind = "model" if isinstance(result, ModelAnswered) else "tools"
    asked = advance(running(next_kind=kind), [PauseRequested("ann")], NOW)
    assert (asked.state.status, asked.state.claimed) == (Status.RUNNING, True)
    done = advance(asked.state, [StepDone(result, NOW)], NOW)
    plain = advance(running(next_kind=kind), [StepDone(result, NOW)], NOW)
    rests = plain.state.status is Status.RUNNING
    assert done.state.status is (Status.PAUSED if rests else plain.state.status)
    assert done.state.step == plain.state.step
    assert (done.messages, done.outcomes) == (plain.messages, plain.outcomes)


@pytest.mark.parametrize(
    ("status", "one"),
    [
        (Status.DELAYED, TimerDue()),
        (Status.WAITING_INPUT, InputGiven("bob", 0, "yes")),
        (Status.WAITING_CHILDREN, ChildrenDone()),
        (Status.WAITING_APPROVAL, EffectsResolved("bob")),
    ],
)
def test_a_waiting_run_rests_when_what_it_waits_for_has_come(status, one):
    state = RunState(status=status, not_before=NOW, waiting=QUESTION, next_kind="tools")
    asked = advance(state, [PauseRequested("ann")], NOW).state
    assert asked.status is status
    assert advance(asked, [one], NOW).state.status is Status.PAUSED
    taken_back = advance(asked, [ResumeRequested("ann")], NOW).state
    assert advance(taken_back, [one], NOW).state.status is Status.QUEUED


def test_a_paused_run_still_ends_at_its_deadline():
    state = RunState(status=Status.PAUSED, limits=Limits(deadline=LATER))
    assert wake_at(state, NOW, 5) == LATER
    done = advance(state, [TimerDue()], LATER)
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "deadline_exceeded")


# ── questions, children, messages under way ──────────────────────────────────────────────────────


def asks(*indexes: int, until: datetime | None = None) -> ToolsWaiting:
    return ToolsWaiting(
        tuple(
            outcome(i, CallStatus.RUNNING, wait=Wait(i, "input", until, {"question": f"q{i}"}))
            for i in indexes
        )
    )


def test_questions_wait_until_each_has_its_answer():
    waiting = advance(running(next_kind="tools"), [StepDone(asks(0, 2), NOW)], NOW).state
    assert waiting.status is Status.WAITING_INPUT
    assert [c["call"] for c in waiting.waiting["calls"]] == ["4.0", "4.2"]
    one = advance(waiting, [InputGiven("ann", 2, "blue")], NOW)
    assert one.state.status is Status.WAITING_INPUT
    assert [(o.index, o.content, o.status) for o in one.outcomes] == [
        (2, "blue", CallStatus.SUCCEEDED)
    ]
    with pytest.raises(IllegalTransition, match="waits for no answer"):
        advance(one.state, [InputGiven("ann", 2, "red")], NOW)
    both = advance(one.state, [InputGiven("ann", 0, "yes")], NOW)
    assert both.state.status is Status.QUEUED
    assert both.state.step == 3, "the step is run again, and finds the answers"


def test_a_question_without_an_answer_ends_in_an_error_for_the_model():
    waiting = advance(running(next_kind="tools"), [StepDone(asks(0, until=LATER), NOW)], NOW).state
    assert wake_at(waiting, NOW, 5) == LATER
    with pytest.raises(IllegalTransition, match="not before"):
        advance(waiting, [TimerDue()], NOW)
    done = advance(waiting, [TimerDue()], LATER)
    assert done.state.status is Status.QUEUED
    assert [(o.index, o.error_type) for o in done.outcomes] == [(0, "INPUT_TIMEOUT")]


def test_a_parent_looks_again_until_its_children_are_done():
    child = outcome(0, CallStatus.RUNNING, wait=Wait(0, "child", None, {"run": "run_x"}))
    waiting = advance(
        running(next_kind="tools"), [StepDone(ToolsWaiting((child,)), NOW)], NOW
    ).state
    assert waiting.status is Status.WAITING_CHILDREN
    assert not holds_slot(waiting)
    looked = advance(waiting, [TimerDue()], NOW)
    assert looked.state == waiting
    assert advance(waiting, [ChildrenDone()], NOW).state.status is Status.QUEUED


def test_a_message_under_way_is_said_to_the_next_model_step_only():
    pending = advance(running(next_kind="tools"), [Steered("ann", "hurry")], NOW)
    assert pending.messages == ()
    done = advance(pending.state, [StepDone(ToolsDone((outcome(),)), NOW)], NOW)
    assert [m.role for m in done.messages] == ["tool", "user"], "after the results, never between"
    assert done.messages[1].text() == "hurry"
    assert done.state.messages == 2
    assert "steer" not in done.state.memo


def test_a_message_that_comes_with_the_final_answer_goes_on_with_the_run():
    pending = advance(running(), [Steered("ann", "and the other?")], NOW).state
    done = advance(pending, [StepDone(say("one"), NOW)], NOW)
    assert (done.state.status, done.state.next_kind) == (Status.RUNNING, "model")
    assert [m.role for m in done.messages] == ["assistant", "user"]
    final = advance(replace(done.state, claimed=True), [StepDone(say("two"), NOW)], NOW)
    assert (final.state.status, final.state.output) == (Status.SUCCEEDED, "two")


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_whose_turn_is_over_goes_back_to_the_queue_after_its_step():
    over = StepDone(say(tools=1, finish="tool_calls"), NOW, turn_over=True)
    done = advance(running(turn_at=NOW - timedelta(seconds=20)), [over], NOW)
    assert (done.state.status, done.state.step, done.state.turn_at) == (Status.QUEUED, 4, None)
    assert done.proposed
    assert types(done)[-1] == ev.RUN_YIELDED
    final = advance(running(), [StepDone(say(), NOW, turn_over=True)], NOW)
    assert final.state.status is Status.SUCCEEDED


# ── model steps ──────────────────────────────────────────────────────────────────────────────────


def test_an_answer_with_tools_goes_on_to_a_tools_step():
    state = running(failures=2, deaths=1, messages=4, input_tokens=10, output_tokens=10)
    done = advance(state, [StepDone(say(tools=2, finish="tool_calls", usd=0.5), NOW)], NOW)
    nxt = done.state
    assert (nxt.status, nxt.step, nxt.version) == (Status.RUNNING, 4, 8)
    assert (nxt.next_kind, nxt.turn, nxt.messages) == ("tools", 1, 5)
    assert (nxt.failures, nxt.deaths, nxt.claimed) == (0, 0, False)
    assert (nxt.input_tokens, nxt.output_tokens, nxt.cost_usd) == (15, 11, 0.5)
    assert done.proposed
    assert done.ready
    assert types(done) == [ev.STEP_STARTED, ev.MODEL_ANSWERED, ev.STEP_COMPLETED]
    assert {e.step for e in done.events} == {4}


@pytest.mark.parametrize(
    ("finish", "status", "reason", "output"),
    [
        ("stop", Status.SUCCEEDED, "final_answer", "done"),
        ("length", Status.SUCCEEDED, "length", "done"),
        ("refusal", Status.FAILED, "refusal", None),
    ],
)
def test_an_answer_without_tools_ends_the_run(finish, status, reason, output):
    done = advance(running(), [StepDone(say(finish=finish), NOW)], NOW)
    assert (done.state.status, done.state.stop_reason) == (status, reason)
    assert done.state.output == output
    assert done.state.step == 4
    assert (done.state.error is not None) == (status is Status.FAILED)


def test_a_pause_is_another_model_step():
    done = advance(running(), [StepDone(say(finish="pause"), NOW)], NOW)
    assert (done.state.status, done.state.next_kind, done.ready) == (Status.RUNNING, "model", True)
    assert not done.proposed


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_turns=1), "max_iterations_exceeded"),
        (Limits(max_tokens=6), "token_budget_exceeded"),
        (Limits(max_cost_usd=0.5), "cost_budget_exceeded"),
        (Limits(deadline=NOW), "deadline_exceeded"),
    ],
)
def test_a_used_up_limit_stops_the_run_after_the_step_is_recorded(limits, reason):
    answer = say(tools=1, finish="tool_calls", usd=0.5)
    done = advance(running(limits=limits), [StepDone(answer, NOW)], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, reason)
    assert done.state.error["code"] == reason.upper()
    assert (done.state.step, done.messages, done.proposed) == (4, (answer.message,), True)
    final = advance(running(limits=limits), [StepDone(say(usd=0.5), NOW)], NOW)
    assert final.state.status is Status.SUCCEEDED, "a final answer needs no more budget"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_turns=2),
        Limits(max_tokens=7),
        Limits(max_cost_usd=0.51),
        Limits(deadline=NOW + timedelta(microseconds=1)),
    ],
)
def test_a_limit_that_is_nearly_used_up_does_not_stop_the_run(limits):
    answer = say(tools=1, finish="tool_calls", usd=0.5)
    assert advance(running(limits=limits), [StepDone(answer, NOW)], NOW).ready


# ── tools steps ──────────────────────────────────────────────────────────────────────────────────


def test_finished_tools_go_back_to_the_model():
    calls = (
        outcome(0, cost_usd=0.25, trust="untrusted"),
        outcome(1, CallStatus.FAILED, error_type="TIMEOUT"),
        outcome(2, CallStatus.REJECTED, error_type="INVALID"),
    )
    done = advance(running(next_kind="tools"), [StepDone(ToolsDone(calls), NOW)], NOW)
    nxt = done.state
    assert (nxt.status, nxt.step, nxt.next_kind, nxt.messages) == (Status.RUNNING, 4, "model", 1)
    assert nxt.cost_usd == 0.25
    assert nxt.turn == 0
    assert done.outcomes == calls
    (message,) = done.messages
    assert message.role == "tool"
    assert message.trust == "untrusted"
    answers = [b for b in message.content if isinstance(b, ToolResult)]
    assert [b.is_error for b in answers] == [False, True, True]
    assert [b.tool_use_id for b in answers] == ["call_0", "call_1", "call_2"]
    assert types(done) == [
        ev.STEP_STARTED,
        ev.TOOL_COMPLETED,
        ev.TOOL_TIMEOUT,
        ev.TOOL_FAILED,
        ev.STEP_COMPLETED,
    ]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(deadline=NOW), "deadline_exceeded"),
        (Limits(max_cost_usd=0.5), "cost_budget_exceeded"),
    ],
)
def test_a_limit_that_the_tools_used_up_stops_the_run_before_another_model_call(limits, reason):
    step = StepDone(ToolsDone((outcome(cost_usd=0.5),)), NOW)
    done = advance(running(next_kind="tools", limits=limits), [step], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, reason)
    assert done.state.step == 4


def test_a_waiting_tool_delays_the_run_without_counting_a_step():
    done = advance(running(next_kind="tools"), [StepDone(waits(), NOW)], NOW)
    assert (done.state.status, done.state.not_before) == (Status.DELAYED, LATER)
    assert (done.state.step, done.state.version, done.state.claimed) == (3, 8, False)
    assert done.outcomes == waits().outcomes
    assert types(done) == [ev.STEP_STARTED, ev.RUN_DELAYED]


def test_a_wait_beyond_the_deadline_fails_now_and_keeps_what_is_finished():
    """INV2, INV3: outcomes that are already known reach the ledger, or a retry would run them
    again.
    """
    state = running(next_kind="tools", limits=Limits(deadline=LATER - timedelta(seconds=1)))
    done = advance(state, [StepDone(waits(), NOW)], NOW)
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "deadline_exceeded")
    assert done.state.not_before is None
    assert done.outcomes == waits().outcomes


def test_an_unknown_effect_waits_for_a_person():
    done = advance(
        running(next_kind="tools"), [StepDone(ToolsUnknown((outcome(),), (1,)), NOW)], NOW
    )
    assert done.state.status is Status.WAITING_APPROVAL
    assert not done.state.claimed
    assert done.outcomes == (outcome(),)
    waiting = next(e for e in done.events if e.type == ev.RUN_WAITING)
    assert waiting.payload == {"for": "unknown_effect", "calls": ["4.1"]}
    assert wake_at(done.state, NOW, 5) is None


def test_a_step_that_was_stopped_without_a_cancel_flag_is_given_back():
    """A signal alone cancels nothing; what its calls have recorded is kept."""
    done = advance(running(), [StepDone(StepCancelled((outcome(),)), NOW)], NOW)
    assert done.state == replace(running(), claimed=False)
    assert done.ready
    assert done.outcomes == (outcome(),)
    assert done.events == ()


COST = Spent(5, 2, 0.5)


def used(done) -> Spent:
    state = done.state
    return Spent(state.input_tokens, state.output_tokens, state.cost_usd)


@pytest.mark.parametrize(
    "one",
    [
        Released("stops", COST),
        StepDone(replace(waits(), spent=COST), NOW),
        StepDone(ToolsUnknown((outcome(),), (1,), COST), NOW),
        StepDone(StepCancelled(spent=COST, kept=Spent(70, 70, 7)), NOW),
        StepDone(ContextFull("limit", 900, 800, 100, COST), NOW),
    ],
    ids=["released", "waiting", "unknown", "signalled", "full"],
)
def test_what_an_attempt_has_paid_that_comes_to_nothing_is_the_runs(one):
    assert used(advance(running(input_tokens=1), [one], NOW)) == Spent(6, 2, 0.5)


def test_a_run_that_is_cancelled_pays_also_for_what_nobody_counts_any_more():
    one = StepDone(StepCancelled(spent=COST, kept=Spent(70, 70, 7)), NOW)
    done = advance(running(cancel_requested=True), [one], NOW)
    assert used(done) == Spent(75, 72, 7.5)
    assert done.events[-1].payload["input_tokens"] == 75


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


def fail(state: RunState, category: str, jitter: float = 1.0, **more: object):
    failure = Failure(category, "X", "x", **more)  # type: ignore[arg-type]
    return advance(state, [StepFailed(failure, NOW, jitter)], NOW)


def test_a_transient_failure_delays_with_growing_backoff_until_attempts_are_used_up():
    state, waits = running(retry=RetryRule(max_attempts=4, base_s=1, factor=3, max_s=5)), []
    for _ in range(3):
        done = fail(state, "transient")
        assert done.state.status is Status.DELAYED
        assert not done.state.claimed
        assert types(done) == [ev.STEP_STARTED, ev.STEP_FAILED, ev.RUN_DELAYED]
        waits.append((done.state.not_before - NOW).total_seconds())
        state = replace(done.state, status=Status.RUNNING, claimed=True)
    assert waits == [1, 3, 5]
    done = fail(state, "transient")
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "retries_exhausted")
    assert done.state.error["code"] == "X"
    assert done.state.failures == 4


def test_a_permanent_failure_ends_the_run():
    done = fail(running(), "permanent", detail={"limit": 3})
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "error")
    assert done.state.error == {
        "category": "permanent",
        "code": "X",
        "message": "x",
        "detail": {"limit": 3},
    }


@pytest.mark.parametrize("jitter", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("seconds", [0.5, 2.0, 30.0, 86400.0])
def test_retry_after_is_a_minimum(jitter, seconds):
    """INV14: whatever the jitter, never before Retry-After; never more than a second after it."""
    done = fail(running(), "limited", jitter, retry_after_s=seconds)
    wait_s = (done.state.not_before - NOW).total_seconds()
    assert done.state.status is Status.DELAYED
    assert seconds <= wait_s <= seconds + 1.0
    assert done.state.failures == 0, "a limit uses up no attempts"


def test_a_limit_never_uses_up_attempts():
    state = running(retry=RetryRule(max_attempts=1), failures=0)
    for _ in range(20):
        done = fail(state, "limited")
        assert done.state.status is Status.DELAYED
        state = replace(done.state, status=Status.RUNNING, claimed=True)


def test_retry_after_zero_is_no_hot_loop():
    done = fail(running(), "limited", 0.0, retry_after_s=0.0)
    assert done.state.not_before > NOW


@pytest.mark.parametrize("category", ["transient", "limited"])
def test_a_wait_beyond_the_deadline_fails_now(category):
    state = running(limits=Limits(deadline=NOW + timedelta(seconds=10)))
    done = fail(state, category, retry_after_s=11.0 if category == "limited" else None)
    expected = Status.FAILED if category == "limited" else Status.DELAYED
    assert done.state.status is expected
    if expected is Status.FAILED:
        assert done.state.stop_reason == "deadline_exceeded"
        assert types(done) == [ev.STEP_STARTED, ev.STEP_FAILED, ev.RUN_FAILED]


# ── death and release ────────────────────────────────────────────────────────────────────────────


def test_a_lost_owner_frees_the_run_for_the_next():
    done = advance(running(deaths=1), [OwnerLost("w", "killed")], NOW)
    told = {"deaths": [{"worker": "w", "why": "killed", "solo": False}]}
    assert done.state == replace(running(deaths=2), claimed=False, memo=told)
    assert done.ready
    assert types(done) == [ev.RUN_RECOVERED]


def test_deaths_in_company_never_fail_a_run():
    """INV15: whoever shared a process with poison is not taken for it."""
    state = running()
    for _ in range(10 * SUSPECT_DEATHS):
        done = advance(replace(state, claimed=True), [OwnerLost("w", "killed")], NOW)
        state = done.state
        assert state.status is Status.RUNNING


@pytest.mark.parametrize("deaths", range(SUSPECT_DEATHS + 2))
def test_a_suspect_that_kills_a_process_of_its_own_is_poison(deaths):
    """INV15: a run that kills its workers is put aside, with its reason."""
    done = advance(running(deaths=deaths), [OwnerLost("w", "killed by signal 9", solo=True)], NOW)
    if deaths < SUSPECT_DEATHS:
        assert done.ready, "a process of one may die for any reason, once or twice"
        return
    assert (done.state.status, done.state.stop_reason) == (Status.FAILED, "poisoned")
    assert done.state.error["code"] == "POISONED"
    assert "w: killed by signal 9" in done.state.error["message"]
    assert types(done) == [ev.RUN_RECOVERED, ev.RUN_FAILED]


def test_a_verdict_names_the_last_deaths_and_a_retry_begins_without_them():
    state = running()
    for n in range(1, 7):
        state = advance(state, [OwnerLost(f"w{n}", "killed by signal 9")], NOW).state
        state = replace(state, claimed=True)
    done = advance(state, [OwnerLost("quarantine-7", "killed by signal 9", solo=True)], NOW)
    detail = done.state.error["detail"]
    assert detail["step"] == 4
    assert [d["worker"] for d in detail["deaths"]] == ["w3", "w4", "w5", "w6", "quarantine-7"]
    assert [d["solo"] for d in detail["deaths"]] == [False] * 4 + [True]
    assert done.events[-1].payload["error"] == done.state.error
    assert content(done.state)["memo"] == {}


def test_what_is_known_of_deaths_goes_with_them():
    state = replace(running(memo={"kept": 1}), claimed=True)
    dead = advance(state, [OwnerLost("w", "killed")], NOW).state
    assert set(dead.memo) == {"kept", "deaths"}
    again = advance(replace(dead, claimed=True), [SAMPLES[StepDone]], NOW).state
    assert dict(again.memo) == {"kept": 1}


def test_deaths_are_counted_per_step():
    state = advance(running(deaths=SUSPECT_DEATHS), [SAMPLES[StepDone]], NOW).state
    assert state.deaths == 0


def test_a_release_costs_nothing():
    done = advance(running(deaths=1, failures=1), [Released("stops")], NOW)
    assert done.state == replace(running(deaths=1, failures=1), claimed=False)
    assert done.ready
    assert done.events == ()


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("cancel", [False, True], ids=["", "cancelled"])
def test_every_end_of_a_step_frees_the_run(name, cancel):
    kind = "model" if isinstance(RESULTS[name], ModelAnswered) else "tools"
    state = running(cancel_requested=cancel, next_kind=kind)
    done = advance(state, [StepDone(RESULTS[name], NOW)], NOW)
    assert not done.state.claimed
    moved = (done.state.status, done.state.step) != (state.status, state.step)
    assert done.state.version == state.version + moved
    if name != "stopped" or cancel:
        assert types(done)[0] == ev.STEP_STARTED
        assert done.events[0].at == NOW
