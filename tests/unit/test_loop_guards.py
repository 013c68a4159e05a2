"""The smaller loop guards: giving up too early, results that are not there yet, budgets, bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.loop_guards import LoopGuards
from harness_common.core.budget import PRESETS, Limits
from harness_common.core.budget_guard import warn
from harness_common.core.call_trace import Trace, trace
from harness_common.core.give_up import ask_to_go_on
from harness_common.core.guidance import Guidance, remembered
from harness_common.core.hints import is_hint
from harness_common.core.loop_guard import LOOP, LoopRules, repeated_failures, watch
from harness_common.core.message import Message, Text, ToolResult, user
from harness_common.core.references import told, unresolved

FOLDER = Path(__file__).parents[1] / "corpus" / "loops"
GIVE_UP: list[dict[str, Any]] = json.loads((FOLDER / "give_up.json").read_text())
REFERENCES: list[dict[str, Any]] = json.loads((FOLDER / "references.json").read_text())


def _asked(case: dict[str, Any], memo: dict[str, Any] | None = None) -> Guidance:
    messages = [user("do it")]
    for round_ in case["errors"]:
        results = tuple(
            ToolResult(f"c{i}", "text", error is not None, error) for i, error in enumerate(round_)
        )
        messages += [Message("assistant", (Text("…"),)), Message("tool", results)]
    return ask_to_go_on(memo or {}, messages, Message("assistant", (Text(case["answer"]),)), 3)


@pytest.mark.parametrize("case", GIVE_UP, ids=lambda c: c["answer"][:40])
def test_giving_up_at_the_first_error_is_told_from_an_answer(case: dict[str, Any]) -> None:
    said = _asked(case)
    assert said.again is case["gives_up"], case["why"]
    assert len(said.messages) == len(said.events) == int(case["gives_up"])


def test_a_model_is_asked_to_go_on_once() -> None:
    said = _asked(GIVE_UP[0])
    assert is_hint(said.messages[0])
    assert not _asked(GIVE_UP[0], dict(said.memo)).again


@pytest.mark.parametrize("case", REFERENCES, ids=lambda c: json.dumps(c["arguments"])[:60])
def test_a_placeholder_for_a_result_is_told_from_a_text(case: dict[str, Any]) -> None:
    found = unresolved(case["arguments"], case["siblings"])
    assert (found is not None) is case["refers"], case["why"]
    if found is not None:
        assert found.text[:20] in told("t", found)


def test_the_place_of_a_placeholder_is_named() -> None:
    found = unresolved({"items": [{"id": "ok"}, {"id": "<id from call 1>"}]})
    assert found is not None
    assert found.field == "items[1].id"


def _warned(memo: dict[str, Any] | None = None, **used: Any) -> Guidance:
    given: dict[str, Any] = {"turns": 0, "tokens": 0, "cost_usd": 0.0} | used
    limits = Limits(max_turns=20, max_tokens=1000, max_cost_usd=1.0)
    return warn(memo or {}, limits, at=0.8, step=4, **given)


@pytest.mark.parametrize(
    ("used", "named"),
    [
        ({"turns": 15, "tokens": 799, "cost_usd": 0.79}, []),
        ({"turns": 16}, ["turns"]),
        ({"tokens": 800}, ["tokens"]),
        ({"cost_usd": 0.8}, ["cost_usd"]),
        ({"turns": 17, "cost_usd": 0.9}, ["turns", "cost_usd"]),
        ({"turns": 20, "tokens": 1000, "cost_usd": 1.0}, []),
    ],
)
def test_a_model_is_warned_of_what_is_nearly_used_up(used: dict[str, Any], named: list[str]):
    said = _warned(**used)
    assert [e.payload["budget"] for e in said.events] == named
    assert len(said.messages) == bool(named)
    assert not _warned(dict(said.memo), **used).messages, "once each"


@pytest.mark.parametrize(("turns", "at"), [(8, 6), (20, 16), (30, 24), (5, 4)])
def test_a_warning_leaves_at_least_one_answer(turns: int, at: int) -> None:
    for turn in range(turns):
        said = warn({}, Limits(max_turns=turns), turns=turn, tokens=0, cost_usd=0, at=0.8, step=1)
        assert bool(said.messages) is (turn >= at)
    small = warn({}, Limits(max_turns=4), turns=3, tokens=0, cost_usd=0, at=0.8, step=1)
    assert not small.messages


def _call(i: int, words: str = "", *, failed: bool = False) -> Trace:
    args = {"text": f"{words} number {i} of many words that all differ w{i} v{i} u{i}"}
    return trace(
        "t", args, content=f"result {i}", error_type="E" if failed else None, failed=failed
    )


def test_what_a_run_remembers_stays_small() -> None:
    memo: dict[str, Any] = {}
    for number in range(60):
        calls = [_call(number * 50 + i, f"some{i} of{number} the{i * 7}") for i in range(50)]
        memo = dict(remembered(memo, watch(memo, calls, ["t"], LoopRules(), number)))
        assert len(json.dumps(memo)) < 2048
    assert set(memo) == {LOOP}


def test_a_trace_is_written_and_read_back() -> None:
    one = _call(3, failed=True)
    assert Trace.decode(one.encode()) == one
    nothing = trace("t", {}, content="")
    assert Trace.decode(nothing.encode()) == nothing


def test_only_the_third_same_failure_in_a_row_is_refused() -> None:
    memo: dict[str, Any] = {}
    args = {"path": "a"}
    bad = trace("read", args, content="no a", error_type="GONE", failed=True)
    good = trace("read", args, content="all the words of a")
    for calls, refused in (([bad], []), ([bad], [0]), ([good], []), ([bad], []), ([bad], [0])):
        memo = dict(remembered(memo, watch(memo, calls, ["read"], LoopRules(), 1)))
        assert repeated_failures(memo, [("read", args)], LoopRules()) == refused
    assert repeated_failures(memo, [("read", {"path": "b"}), ("write", args)], LoopRules()) == []
    assert repeated_failures(memo, [("read", args)], LoopRules(block_repeats=False)) == []


def test_what_fails_may_be_tried_again_after_something_was_changed_beside_it() -> None:
    """A file is mended and its test run in one answer, three times, before the test passes."""
    memo: dict[str, Any] = {}
    test = trace("test", {}, content="1 failed", error_type="FAILED", failed=True)
    edits = [trace("edit", {"text": f"try {n}"}, content="ok", has_effect=True) for n in range(3)]
    for edit in edits:
        memo = dict(remembered(memo, watch(memo, [edit, test], ["edit", "test"], LoopRules(), 1)))
        assert repeated_failures(memo, [("edit", {}), ("test", {})], LoopRules()) == []
    # The same change over again changes nothing.
    same = [edits[-1], test]
    memo = dict(remembered(memo, watch(memo, same, ["edit", "test"], LoopRules(), 1)))
    assert repeated_failures(memo, [("edit", {}), ("test", {})], LoopRules()) == [1]


def test_a_passing_failure_may_be_tried_as_often_as_the_model_likes() -> None:
    memo: dict[str, Any] = {}
    busy = trace("read", {}, content="busy", error_type="RATE_LIMITED", failed=True)
    for _ in range(3):
        memo = dict(remembered(memo, watch(memo, [busy], ["read"], LoopRules(), 1)))
    assert repeated_failures(memo, [("read", {})], LoopRules()) == []


def test_the_model_is_told_before_the_last_round() -> None:
    memo: dict[str, Any] = {}
    one, said = _call(1), []
    for number in range(1, 6):
        guidance = watch(memo, [one], ["t"], LoopRules(), number)
        memo = dict(remembered(memo, guidance))
        said.append((len(guidance.messages), guidance.stop))
    assert said == [(0, None), (0, None), (1, None), (1, None), (0, "dead_loop")]


def test_settings_are_part_of_an_agent_and_make_sense() -> None:
    spec = AgentSpec.model_validate({"loop_guards": {"dead_loop": False, "hint_after": 4}})
    assert not spec.loop_guards.rules().dead_loop
    assert spec.loop_guards.rules().hint_after == 4
    with pytest.raises(ValidationError, match=r"hint_after .5. must be below stop_after .5."):
        LoopGuards(hint_after=5)
    assert PRESETS == {"retrieval": 8, "data": 20, "orchestration": 30}
    assert LoopGuards().rules() == LoopRules()
