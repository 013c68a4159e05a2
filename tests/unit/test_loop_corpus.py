"""The loop guards over a corpus: loops that are to be noticed, and work that must not be stopped.

Each case is a list of rounds, each round a list of `[tool, arguments, result]`; a result that is an
object is a failure. A model of a loop goes on whatever it is told.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness_common.core import events as ev
from harness_common.core.call_trace import Trace, trace
from harness_common.core.guidance import remembered
from harness_common.core.loop_guard import (
    LoopRules,
    last_result,
    repeated_failures,
    watch,
)

FOLDER = Path(__file__).parents[1] / "corpus" / "loops"
LOOPS: list[dict[str, Any]] = json.loads((FOLDER / "loops.json").read_text())
CONTROLS: list[dict[str, Any]] = json.loads((FOLDER / "controls.json").read_text())
SOON = 4
"""By which round of a loop something is to be said."""


@dataclass
class Played:
    """What the guards did: in which rounds (from 1) they hinted, refused a call, stopped."""

    hints: list[tuple[int, str]] = field(default_factory=list)
    blocked: list[int] = field(default_factory=list)
    stop: tuple[int, str] | None = None
    memo_bytes: int = 0

    @property
    def first(self) -> int | None:
        said = [n for n, _ in self.hints] + self.blocked + ([self.stop[0]] if self.stop else [])
        return min(said, default=None)


def played(case: dict[str, Any], rules: LoopRules | None = None) -> Played:
    """Play a case until it is stopped or over."""
    rules, out, memo = rules or LoopRules(), Played(), dict[str, Any]()
    for number, calls in enumerate([*case.get("before", ()), *case["rounds"]], 1):
        refused = repeated_failures(memo, [(tool, args) for tool, args, _ in calls], rules)
        out.blocked += [number] if refused else []
        traces = [
            (i in refused and last_result(memo, tool, args)) or as_trace(case, tool, args, result)
            for i, (tool, args, result) in enumerate(calls)
        ]
        said = watch(memo, traces, [tool for tool, _, _ in calls], rules, number)
        memo = dict(remembered(memo, said))
        out.memo_bytes = max(out.memo_bytes, len(json.dumps(memo)))
        assert bool(said.events) == bool(said.messages or said.stop), "whatever is said is recorded"
        if said.messages:
            out.hints.append((number, said.events[0].payload["guard"]))
        if said.stop is not None:
            assert said.events[0].type == ev.GUARD_STOPPED
            out.stop = (number, said.stop)
            break
    return out


def tell(text: str) -> None:
    """Show the figures of the corpus in the test's output."""
    sys.stdout.write(f"{text}\n")


def as_trace(case: dict[str, Any], tool: str, args: Any, result: Any) -> Trace:
    """Make the trace of a call as the worker would."""
    content, error = result, None
    if isinstance(result, dict):
        error = result["error"]
        content = (
            f"Tool {tool} failed ({error}): {result['text']}\n"
            "Reconsider the call before trying again."
        )
    return trace(
        tool,
        args,
        content=content,
        error_type=error,
        failed=error is not None,
        waited=tool in {"wait", "ask_user"},
        has_effect=tool in case["writes"],
    )


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(LOOPS) >= 40
    assert len(CONTROLS) >= 40
    names = [case["name"] for case in LOOPS + CONTROLS]
    assert len(set(names)) == len(names)


def test_loops_are_noticed_by_the_fourth_round_and_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late, endless, biggest = [], [], 0
    for case in LOOPS:
        one, before = played(case), len(case.get("before", ()))
        biggest = max(biggest, one.memo_bytes)
        if one.first is None or one.first - before > SOON:
            late.append((case["name"], one.first and one.first - before))
        if one.stop is None:
            endless.append(case["name"])
    share = 1 - len(late) / len(LOOPS)
    with capsys.disabled():
        tell(f"\nloops: {len(LOOPS)}, noticed by round {SOON}: {share:.1%}, late: {late}")
        tell(f"       not ended by their own guard: {endless}; memo at most {biggest} bytes")
    assert share >= 0.95
    assert biggest < 2048


def test_nothing_of_the_control_corpus_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    results = {case["name"]: played(case) for case in CONTROLS}
    stopped = {name: one.stop for name, one in results.items() if one.stop}
    blocked = {name: one.blocked for name, one in results.items() if one.blocked}
    hinted = {name: one.hints for name, one in results.items() if one.hints}
    with capsys.disabled():
        tell(f"\ncontrols: {len(CONTROLS)}, stopped: {stopped}, refused: {blocked}")
        tell(f"          hinted ({len(hinted)}): {hinted}")
    assert not stopped
    assert not blocked
    assert len(hinted) <= len(CONTROLS) // 10


@pytest.mark.parametrize("case", LOOPS, ids=lambda c: c["name"])
def test_a_loop_is_noticed_by_the_guard_that_it_is_of(case: dict[str, Any]) -> None:
    one = played(case)
    assert one.hints, one
    assert case["guard"] in {guard for _, guard in one.hints}


@pytest.mark.parametrize("guard", ["dead_loop", "ping_pong", "no_progress"])
def test_without_its_guard_a_loop_goes_on(guard: str) -> None:
    """Each guard is needed: turned off, most of its loops are not noticed in time."""
    mine = [c for c in LOOPS if c["guard"] == guard]
    rules = LoopRules(**{guard: False}, block_repeats=False)
    missed = [c for c in mine if (played(c, rules).first or 99) > SOON + len(c.get("before", ()))]
    assert len(missed) == len(mine)
