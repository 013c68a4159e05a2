"""Notices a model that goes round in circles: it is told so first, and ends when it goes on.

Three guards look at the last rounds of tool calls (a round is all calls of one answer):

- dead loop: the same or alike calls with the same result, round after round;
- ping-pong: two or three different rounds in turn, each as it was the time before;
- no progress: rounds without a success that is new.

What is compared is in `core.call_trace`. A call in which time passed (a wait) ends every count:
asking again after it is polling. Results that may change by themselves (a limit, "still running")
are given more patience, and work through a list of numbers that finds nothing is never stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from harness_common.core import events as ev
from harness_common.core.call_trace import Mark, Trace, alike, exact_digest, tool_digest
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json
from harness_common.core.stop_reasons import StopReason

LOOP: Final = "loop"
"""The key of `RunState.memo`: the traces of the last rounds, and how long each count is."""
REPEATED_CALL: Final = "REPEATED_CALL"
"""The error type of a call that was not made because it had failed twice in the same way."""
_ROUNDS: Final = 12
_CALLS_OF_A_ROUND: Final = 4
_CHARS: Final = 1_500
_PERIODS: Final = (2, 3)
_NAME: Final = re.compile(r"[\w-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoopRules:
    """When the guards speak; `contracts.loop_guards` has what an agent may set."""

    dead_loop: bool = True
    ping_pong: bool = True
    no_progress: bool = True
    block_repeats: bool = True
    hint_after: int = 3
    stop_after: int = 5
    likeness: float = 0.5
    stale_hint_after: int = 6
    stale_stop_after: int = 12


class Again(IntEnum):
    """How much a call repeats an earlier one."""

    NO = 0
    MAYBE = 1
    """It may have its reasons: the result can change by itself, or a list is worked through."""
    ALIKE = 2
    SAME = 3


@dataclass(frozen=True, slots=True)
class _Memory:
    """The last rounds, oldest first, and how long each count is."""

    rounds: tuple[tuple[Trace, ...], ...] = ()
    same: int = 0
    level: Again = Again.SAME
    """The least certain repetition of the count `same`."""
    cycles: tuple[int, ...] = (0,) * len(_PERIODS)
    """For each period, rounds in a row that were as the one a period before."""
    is_soft: bool = False
    """Some repetition of the cycles may have its reasons."""
    stale: int = 0

    def to_json(self) -> Json:
        """Write it for the memo, at most about 1.7 KB."""
        rounds = ["|".join(t.encode() for t in calls) for calls in self.rounds]
        while sum(map(len, rounds)) > _CHARS:
            del rounds[0]
        counts = [self.same, int(self.level), *self.cycles, int(self.is_soft), self.stale]
        return {"r": rounds, "n": counts}

    @staticmethod
    def from_json(data: Json) -> _Memory:
        """Read what `to_json` wrote."""
        if not data:
            return _Memory()
        rounds = tuple(tuple(map(Trace.decode, r.split("|"))) if r else () for r in data["r"])
        same, level, *cycles, is_soft, stale = data["n"]
        return _Memory(rounds, same, Again(level), tuple(cycles), bool(is_soft), stale)


def watch(
    memo: Mapping[str, Json],
    calls: Sequence[Trace],
    tools: Sequence[str],
    rules: LoopRules,
    step: int,
) -> Guidance:
    """Look at one more round of calls; `tools` are their names, for people and the model."""
    if not calls:
        return NOTHING
    memory = _with_round(_Memory.from_json(memo.get(LOOP)), _kept(calls), rules)
    found = _dead_loop(memory, rules) or _ping_pong(memory, rules) or _no_progress(memory, rules)
    kept = {LOOP: memory.to_json()}
    if found is None:
        return Guidance(memo=kept)
    return _spoken(found, sorted(set(tools)), kept, step)


def repeated_failures(
    memo: Mapping[str, Json], calls: Sequence[tuple[str, Json]], rules: LoopRules
) -> list[int]:
    """Return which of the calls that are asked for (tool, arguments) have failed in the same way in
    each of the last two rounds: making them a third time tells nothing new, unless something was
    changed beside them (a file is mended, its test runs again).
    """
    memory = _Memory.from_json(memo.get(LOOP))
    if not rules.block_repeats or len(memory.rounds) < 2:
        return []
    last, before = memory.rounds[-1], memory.rounds[-2]
    if any(_changed(t) and not any(_same_call(t, b) for b in before) for t in last):
        return []
    wanted = [(tool_digest(tool), exact_digest(arguments)) for tool, arguments in calls]
    dead = {
        (t.tool, t.exact)
        for t in last
        if t.marks & Mark.FAILED and not t.marks & (Mark.PASSING | Mark.WAITED)
        if any(_same_call(t, b) and t.result == b.result for b in before)
    }
    return [i for i, one in enumerate(wanted) if one in dead]


def last_result(memo: Mapping[str, Json], tool: str, arguments: Json) -> Trace | None:
    """Return the trace of the same call in the last round: what a blocked one stands for."""
    rounds = _Memory.from_json(memo.get(LOOP)).rounds
    key = (tool_digest(tool), exact_digest(arguments))
    return next((t for t in rounds[-1] if (t.tool, t.exact) == key), None) if rounds else None


def _changed(call: Trace) -> bool:
    return bool(call.marks & Mark.EFFECT) and not call.marks & Mark.FAILED


def _same_call(a: Trace, b: Trace) -> bool:
    return a.tool == b.tool and a.exact == b.exact


def _kept(calls: Sequence[Trace]) -> tuple[Trace, ...]:
    """Return the calls of a round that are remembered: always the same ones of equal rounds."""
    return tuple(sorted(calls, key=lambda t: (t.exact, t.tool))[:_CALLS_OF_A_ROUND])


def repeats(before: Trace, now: Trace, likeness: float) -> Again:
    """Tell how much a call repeats an earlier one."""
    marks = before.marks | now.marks
    if before.tool != now.tool or before.result != now.result or marks & Mark.WAITED:
        return Again.NO
    level = Again.MAYBE if marks & (Mark.PASSING | Mark.PENDING) else Again.SAME
    worked = not marks & (Mark.FAILED | Mark.EMPTY)
    if before.exact == now.exact:
        # The same small effect several times over may be just what is wanted: "next", "next".
        return Again.MAYBE if worked and marks & Mark.EFFECT and marks & Mark.SHORT else level
    share = alike(before, now)
    if share < likeness or (worked and marks & (Mark.SHORT | Mark.EFFECT)):
        return Again.NO
    if before.numbers != now.numbers:
        return Again.MAYBE
    return min(level, Again.SAME if share > 0.99 else Again.ALIKE)


def _round_repeats(
    before: Sequence[Trace], now: Sequence[Trace], rules: LoopRules, *, is_next: bool = True
) -> Again:
    """Tell how much a whole round repeats an earlier one: as much as its least repeated call.

    Of a round that is not the one before, only the same calls count.
    """
    levels = [max((repeats(b, t, rules.likeness) for b in before), default=Again.NO) for t in now]
    level = min(levels, default=Again.NO)
    return level if is_next or level is not Again.ALIKE else Again.MAYBE


def _with_round(memory: _Memory, calls: tuple[Trace, ...], rules: LoopRules) -> _Memory:
    rounds = memory.rounds
    level = _round_repeats(rounds[-1], calls, rules) if rounds else Again.NO
    again = level is not Again.NO
    cycles, is_soft = [], memory.is_soft
    for period, count in zip(_PERIODS, memory.cycles, strict=True):
        was = (
            _round_repeats(rounds[-period], calls, rules, is_next=False)
            if len(rounds) >= period
            else Again.NO
        )
        cycles.append(0 if again or was is Again.NO else count + 1)
        is_soft = is_soft or (was is Again.MAYBE and not again)
    return _Memory(
        rounds=(*rounds, calls)[-_ROUNDS:],
        same=memory.same + 1 if again else 1,
        level=min(level, memory.level) if again and memory.same > 1 else level,
        cycles=tuple(cycles),
        is_soft=is_soft and any(cycles),
        stale=_stale(memory, calls, rules),
    )


def _stale(memory: _Memory, calls: tuple[Trace, ...], rules: LoopRules) -> int:
    """Return for how many rounds nothing new has come."""
    if any(t.marks & Mark.WAITED for t in calls):
        return 0
    known = [t for r in memory.rounds for t in r]
    for one in calls:
        if one.marks & Mark.FAILED:
            continue
        seen = max((repeats(k, one, rules.likeness) for k in known), default=Again.NO)
        if seen is Again.NO or (seen is Again.MAYBE and not one.marks & Mark.PENDING):
            return 0
    patient = all(t.marks & (Mark.PASSING | Mark.PENDING) for t in calls)
    return memory.stale + (not patient)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a guard has to say about the rounds."""

    guard: StopReason
    rounds: int
    stops: bool
    last: bool
    """The next such round ends the run."""
    advice: str


def _dead_loop(memory: _Memory, rules: LoopRules) -> _Found | None:
    if not rules.dead_loop or memory.same < 2:
        return None
    hint_at, stop_at = {
        Again.SAME: (rules.hint_after, rules.stop_after),
        Again.ALIKE: (rules.hint_after, rules.stop_after + 2),
        Again.MAYBE: (rules.hint_after + 1, rules.stop_after * 2),
        Again.NO: (0, 0),
    }[memory.level]
    numbered = any(t.marks & Mark.NUMBERED and _is_list(memory, t) for t in memory.rounds[-1])
    advice = (
        "Asking again gives the same. Change the strategy: other arguments that differ in what "
        "matters, another tool, or answer with what you have and say what is missing. If something "
        "has to happen first, wait for it."
    )
    return _due(StopReason.DEAD_LOOP, memory.same, hint_at, None if numbered else stop_at, advice)


def _is_list(memory: _Memory, call: Trace) -> bool:
    """Tell whether a call is one of a list of numbers that is worked through."""
    before = memory.rounds[-2] if len(memory.rounds) > 1 else ()
    return all(b.numbers != call.numbers for b in before)


def _ping_pong(memory: _Memory, rules: LoopRules) -> _Found | None:
    if not rules.ping_pong:
        return None
    for period, count in zip(_PERIODS, memory.cycles, strict=True):
        more = 2 if memory.is_soft else 1
        advice = (
            f"You go round in a circle of {period} steps, each with the result that it had before. "
            "Leave it: decide by what you know, or try what you have not tried."
        )
        stop_at = (more * 2 + 1) * period
        found = _due(StopReason.PING_PONG, count + period, 2 * period, stop_at, advice)
        if count and found is not None:
            return found
    return None


def _no_progress(memory: _Memory, rules: LoopRules) -> _Found | None:
    if not rules.no_progress:
        return None
    advice = (
        "None of them brought anything new. Step back: what is the goal, what do you know for "
        "sure, which one step would tell you more? If there is none, answer with what you have."
    )
    return _due(
        StopReason.NO_PROGRESS, memory.stale, rules.stale_hint_after, rules.stale_stop_after, advice
    )


def _due(
    guard: StopReason, rounds: int, hint_at: int, stop_at: int | None, advice: str
) -> _Found | None:
    """Say something at the first mark, before the last, and at the last."""
    if stop_at is not None and rounds >= stop_at:
        return _Found(guard, rounds, stops=True, last=False, advice=advice)
    is_last = stop_at is not None and rounds == stop_at - 1
    if rounds == hint_at or (is_last and rounds > hint_at):
        return _Found(guard, rounds, stops=False, last=is_last, advice=advice)
    return None


_WHAT: Final = {
    StopReason.DEAD_LOOP: "the same calls with the same results, {n} rounds in a row",
    StopReason.PING_PONG: "the same few calls in turn for {n} rounds",
    StopReason.NO_PROGRESS: "{n} rounds of calls without anything new",
}


def _spoken(found: _Found, tools: Sequence[str], kept: Mapping[str, Json], step: int) -> Guidance:
    what = _WHAT[found.guard].format(n=found.rounds)
    payload: dict[str, Json] = {"guard": str(found.guard), "rounds": found.rounds, "tools": tools}
    named = ", ".join(t if _NAME.fullmatch(t) else "a tool that there is not" for t in tools)[:200]
    if found.stops:
        error = {
            "category": "permanent",
            "code": found.guard.upper(),
            "message": f"{what} ({named}), although the model was told to do something else",
        }
        event = Event(ev.GUARD_STOPPED, payload, step)
        return Guidance((), (event,), kept, stop=found.guard, error=error)
    ends = " The next such round ends the run." if found.last else ""
    said = hint(f"These were {what} ({named}). {found.advice}{ends}")
    return Guidance((said,), (Event(ev.GUARD_HINTED, payload, step),), kept)
