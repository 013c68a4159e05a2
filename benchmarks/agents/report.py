"""What a system made of the tasks: judged by its answers and by the file of effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agents.tasks import TASKS

Json = Any


@dataclass(frozen=True, slots=True)
class Done:
    """What a system says of one task."""

    task: str
    answer: str | None
    turns: int = 0
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """A system under one fault."""

    system: str
    fault: str
    succeeded: int
    tasks: int
    repeated: int
    """Effects that happened more often than the task asks for."""
    unasked: int
    """Effects that no task asks for."""
    missing: int
    """Effects that did not happen."""
    turns: int
    tokens: int
    seconds: float
    asked: Mapping[str, int] = field(default_factory=dict)
    """How often a person had to decide, by what about."""
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Return the share of tasks that succeeded, in percent."""
        return 100 * self.succeeded / self.tasks


def judge(system: str, fault: str, done: Sequence[Done], folder: Path, seconds: float) -> Score:
    """Compare with the truth. A task succeeds with the right answer, each of its effects once, and
    no other.
    """
    file = folder / "effects.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    happened: dict[str, Counter[str]] = {task.id: Counter() for task in TASKS}
    for line in lines:
        happened[line.split(" ", 1)[0]][line] += 1
    by_task = {one.task: one for one in done}
    succeeded = repeated = unasked = missing = 0
    failures: dict[str, str] = {}
    for task in TASKS:
        answer, effects = task.truth()
        wanted, was = Counter(effects), happened[task.id]
        twice = sum((+(was - wanted))[line] for line in wanted)
        others = sum(n for line, n in was.items() if line not in wanted)
        gone = sum((wanted - was).values())
        repeated, unasked, missing = repeated + twice, unasked + others, missing + gone
        said = by_task.get(task.id, Done(task.id, None, error="it did not end"))
        if said.answer == answer and not (twice or others or gone):
            succeeded += 1
        else:
            failures[task.id] = said.error or _why(said, answer, twice, others, gone)
    return Score(
        system, fault, succeeded, len(TASKS), repeated, unasked, missing,
        sum(one.turns for one in done), sum(one.tokens for one in done), seconds,
        failures=failures,
    )  # fmt: skip


def _why(said: Done, answer: str, twice: int, others: int, gone: int) -> str:
    if said.answer != answer:
        return f"answered {said.answer!r}, right is {answer!r}"[:300]
    return f"{twice} effects repeated, {others} unasked, {gone} missing"
