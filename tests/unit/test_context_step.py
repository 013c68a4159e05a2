"""What follows from a prompt that does not fit, and from a compaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.context_step import FULL, was_full
from harness_common.core.context_summary import summary_message
from harness_common.core.context_view import CONTEXT, Compaction, first_needed, needs_history
from harness_common.core.inputs import Steered, StepDone
from harness_common.core.message import Message, Text, user
from harness_common.core.rules import advance
from harness_common.core.run import PERMIT, RunState, Status
from harness_common.core.step import Compacted, ContextFull, ModelAnswered
from harness_common.core.values import replace

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = RunState(
    status=Status.RUNNING, version=7, step=3, turn=2, claimed=True, started=True, messages=5,
    memo={PERMIT: {"at": "x"}, "marks": ["untrusted"]}, turn_at=NOW,
)  # fmt: skip
SUMMARY = summary_message(
    "Done:", [], "untrusted",
    {"covers": 4, "results": 1, "turns": 2, "answers": 2, "how": "summarised", "step": 4},
)  # fmt: skip
FULL_ = ContextFull("limit", 900, 800, 100)
DONE = Compacted(
    "summarised", SUMMARY, kept_from=4, covers=4, tokens_before=900, tokens_after=300, model="m",
    input_tokens=70, output_tokens=30, cost_usd=0.5,
)  # fmt: skip


def after(state, result):
    return advance(state, [StepDone(result, NOW)], NOW)


def types(done):
    return [e.type for e in done.events]


def test_a_full_context_is_compacted_before_the_step_is_made():
    done = after(RUNNING, FULL_)
    assert (done.state.next_kind, done.state.step, done.state.version) == ("compact", 3, 7)
    assert done.ready
    assert types(done) == [ev.STEP_STARTED, ev.CONTEXT_FULL]
    assert done.state.memo[FULL] == {
        "why": "limit", "tokens": 900, "limit": 800, "fixed": 100, "turn": 2,
    }  # fmt: skip
    assert PERMIT not in done.state.memo
    assert done.messages == ()


def test_the_summary_stands_behind_all_messages_and_the_memo_says_what_is_shown():
    state = replace(after(RUNNING, FULL_).state, claimed=True)
    done = after(state, DONE)
    nxt = done.state
    assert (nxt.next_kind, nxt.step, nxt.turn, nxt.messages) == ("model", 4, 2, 6)
    assert nxt.memo[CONTEXT] == {"at": 6, "from": 4, "history_from": None}
    assert Compaction.of(nxt.memo) == Compaction(6, 4)
    assert nxt.memo["marks"] == ["untrusted"]  # what was touched stays touched
    assert (first_needed(nxt.memo), needs_history(nxt.memo)) == (4, False)
    assert done.messages == (SUMMARY,)
    assert (nxt.input_tokens, nxt.output_tokens, nxt.cost_usd) == (70, 30, 0.5)
    assert types(done) == [ev.STEP_STARTED, ev.CONTEXT_COMPACTED, ev.STEP_COMPLETED]
    told = done.events[1].payload
    assert told["trust"] == "untrusted"
    assert (told["covers"], told["tokens_before"], told["tokens_after"]) == (4, 900, 300)


def test_one_reason_brings_one_compaction_a_turn():
    state = after(RUNNING, FULL_).state
    state = after(replace(state, claimed=True), DONE).state
    assert was_full(state) == "limit"
    said = ModelAnswered(Message("assistant", (Text("go on"),)), "pause", "m")
    state = after(replace(state, claimed=True), said).state
    assert was_full(state) is None
    assert FULL not in state.memo
    assert CONTEXT in state.memo


def test_nothing_gained_changes_nothing_but_the_step():
    state = replace(after(RUNNING, FULL_).state, claimed=True)
    done = after(state, Compacted("nothing"))
    assert (done.state.messages, done.state.step) == (5, 4)
    assert CONTEXT not in done.state.memo
    assert done.messages == ()


def test_a_message_for_the_model_is_said_after_the_summary():
    state = advance(after(RUNNING, FULL_).state, [Steered("ann", "Hurry.")], NOW).state
    assert state.messages == 5  # not before: the summary comes first
    done = after(replace(state, claimed=True), DONE)
    assert done.messages == (SUMMARY, user("Hurry."))
    assert done.state.messages == 7
    assert done.state.memo[CONTEXT]["at"] == 6


def test_a_cancel_ends_the_run_with_its_summary_kept():
    state = replace(RUNNING, cancel_requested=True)
    assert after(state, FULL_).state.status is Status.CANCELLED
    done = after(replace(state, next_kind="compact"), DONE)
    assert done.state.status is Status.CANCELLED
    assert done.messages == (SUMMARY,)


def test_what_a_summary_costs_counts():
    limits = Limits(max_turns=9, max_tokens=99)
    done = after(replace(RUNNING, next_kind="compact", limits=limits), DONE)
    assert done.state.status is Status.FAILED
    assert done.state.stop_reason == "token_budget_exceeded"
    late = Limits(max_turns=9, deadline=NOW - timedelta(seconds=1))
    done = after(replace(RUNNING, next_kind="compact", limits=late), DONE)
    assert done.state.stop_reason == "deadline_exceeded"


def test_what_was_put_at_the_end_is_said_before_the_answer():
    note = Message("user", (Text("[Memory]\nAnn likes blue."),), extra={"section": "Memory"})
    said = ModelAnswered(
        Message("assistant", (Text("blue"),)), "stop", "m", notes=(note,),
        context={"tokens": 5}, session_summary="x → blue",
    )  # fmt: skip
    done = after(RUNNING, said)
    assert done.messages == (note, said.message)
    assert done.state.messages == 7
    assert done.session_summary == "x → blue"
    (answered,) = [e for e in done.events if e.type == ev.MODEL_ANSWERED]
    assert answered.payload["context"] == {"tokens": 5}
