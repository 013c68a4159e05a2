"""What is asked of the platform: runs as scripts, and people who cancel them.

A script is a list of turns. A turn is what the model answers: the calls it asks for, the errors its
attempts raise before that, how long it takes. A new kind of script is one function in `SCRIPTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from harness_common.core.errors import Limited, Permanent, Transient

Finish = Literal["stop", "tool_calls", "length", "refusal", "pause"]


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One tool call: which tool, and how long it takes."""

    tool: str
    s: float = 0.05


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model. Without calls it is the last."""

    calls: tuple[CallPlan, ...] = ()
    errors: tuple[Exception, ...] = ()
    model_s: float = 0.1
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The script of one run, its limits, and when somebody cancels it."""

    turns: tuple[Turn, ...]
    starts_s: float = 0.0
    cancel_s: float | None = None
    max_turns: int = 20
    deadline_s: float | None = None
    max_tokens: int | None = None

    def turn(self, n: int) -> Turn:
        """Return the answer after `n` answers; past the script the model has nothing to ask."""
        return self.turns[n] if n < len(self.turns) else Turn()


def _calls(rng: Random, *tools: str) -> Turn:
    """A turn that asks for tools, quick for the most part."""
    return Turn(tuple(CallPlan(t, _s(rng, 0.02, 0.4)) for t in tools), model_s=_s(rng, 0.05, 0.6))


def _s(rng: Random, least: float, usual: float) -> float:
    """Draw a duration: one in twelve is slow enough to outlive a lease."""
    return rng.uniform(2.0, 7.0) if rng.random() < 0.08 else rng.uniform(least, usual)


def _reads(rng: Random) -> list[Turn]:
    return [_calls(rng, "read", "read"), _calls(rng, "flaky", "read")]


def _writes(rng: Random) -> list[Turn]:
    return [_calls(rng, "write"), _calls(rng, "read", "write", "write")]


def _slow_writes(rng: Random) -> list[Turn]:
    slow = Turn((CallPlan("write", rng.uniform(1.0, 6.0)), CallPlan("write", 0.1)))
    return [slow, _calls(rng, "write")]


def _waits(rng: Random) -> list[Turn]:
    wait = Turn((CallPlan("wait", rng.uniform(0.5, 4.0)), CallPlan("read", 0.05)))
    both = Turn((CallPlan("wait", rng.uniform(0.5, 3.0)), CallPlan("write", 0.05)))
    return [wait, both]


def _limited(rng: Random) -> list[Turn]:
    errors = tuple(
        Limited("429", retry_after_s=rng.choice((None, 0.0, rng.uniform(0.5, 4.0))))
        for _ in range(rng.randint(1, 3))
    )
    return [replace(_calls(rng, "read"), errors=errors), _calls(rng, "write")]


def _flaky_model(rng: Random) -> list[Turn]:
    errors = tuple(Transient("cut") for _ in range(rng.randint(1, 3)))
    return [_calls(rng, "write"), replace(_calls(rng, "read"), errors=errors)]


def _hopeless(rng: Random) -> list[Turn]:
    error: Exception = Permanent("bad key") if rng.random() < 0.5 else Transient("down")
    return [_calls(rng, "read"), _calls(rng, "write"), replace(_calls(rng), errors=(error,) * 9)]


def _refused(rng: Random) -> list[Turn]:
    last: Finish = rng.choice(("refusal", "length", "stop"))
    return [_calls(rng, "write_refused"), _calls(rng, "read"), Turn(finish=last)]


def _unsure(rng: Random) -> list[Turn]:
    return [_calls(rng, "read"), _calls(rng, "write", "write_unsure", "write")]


def _pauses(rng: Random) -> list[Turn]:
    return [Turn(finish="pause"), _calls(rng, "write"), _calls(rng, "read")]


SCRIPTS: Final[tuple[Callable[[Random], list[Turn]], ...]] = (
    _reads, _writes, _writes, _slow_writes, _waits, _limited, _flaky_model, _hopeless, _refused,
    _unsure, _pauses,
)  # fmt: skip


def make_plan(rng: Random, fault_s: float) -> Plan:
    """Draw one run: at least two turns with tools and a last answer, five steps or more."""
    plan = Plan(tuple(rng.choice(SCRIPTS)(rng)), starts_s=rng.random() * fault_s / 3)
    if rng.random() < 0.2:
        plan = replace(plan, cancel_s=plan.starts_s + rng.random() * fault_s)
    dice = rng.random()
    if dice < 0.05:
        return replace(plan, max_turns=2)
    if dice < 0.10:
        return replace(plan, deadline_s=rng.uniform(0.5, 8.0))
    if dice < 0.13:
        return replace(plan, max_tokens=30)
    return plan
