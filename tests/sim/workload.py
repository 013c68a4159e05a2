"""What is asked of the platform: runs as scripts, and people who pause, answer, steer and cancel.

A script is a list of turns. A turn is what the model answers: the calls it asks for, the errors its
attempts raise before that, how long it takes. A new kind of script is one function in `SCRIPTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

from harness_common.core.errors import Limited, Permanent, Transient

Finish = Literal["stop", "tool_calls", "length", "refusal", "pause"]
Act = Literal["cancel", "pause", "resume", "steer", "answer", "resolve", "decide"]


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One tool call: which tool, how long it takes, and what else it says."""

    tool: str
    s: float = 0.05
    more: dict[str, Any] = field(default_factory=dict)
    child: Plan | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model. Without calls it is the last."""

    calls: tuple[CallPlan, ...] = ()
    errors: tuple[Exception, ...] = ()
    model_s: float = 0.1
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The script of one run, its limits, and what people ask of it and when."""

    turns: tuple[Turn, ...]
    starts_s: float = 0.0
    acts: tuple[tuple[float, Act], ...] = ()
    max_turns: int = 20
    deadline_s: float | None = None
    max_tokens: int | None = None
    key: str | None = None
    behind: bool = False
    """Starts in the session of the run before it."""

    @property
    def runs(self) -> int:
        """Count the run and its children."""
        return 1 + sum(c.child is not None for t in self.turns for c in t.calls)

    def turn(self, n: int) -> Turn:
        """Return the answer after `n` answers; past the script the model has nothing to ask."""
        return self.turns[n] if n < len(self.turns) else Turn()


def _calls(rng: Random, *tools: str) -> Turn:
    """A turn that asks for tools, quick for the most part."""
    return Turn(tuple(CallPlan(t, _s(rng, 0.02, 0.4)) for t in tools), model_s=_s(rng, 0.05, 0.5))


def _s(rng: Random, least: float, usual: float) -> float:
    """Draw a duration: one in twelve is slow enough to outlive a lease."""
    return rng.uniform(1.5, 5.0) if rng.random() < 0.08 else rng.uniform(least, usual)


def _reads(rng: Random) -> list[Turn]:
    return [_calls(rng, "read", "flaky")]


def _writes(rng: Random) -> list[Turn]:
    return [_calls(rng, "read", "write", "write")]


def _slow_writes(rng: Random) -> list[Turn]:
    if rng.random() < 0.5:
        return [Turn((CallPlan("write", rng.uniform(0.3, 0.8)),) * 4)]
    return [Turn((CallPlan("write", rng.uniform(1.0, 5.0)), CallPlan("write", 0.1)))]


def _waits(rng: Random) -> list[Turn]:
    return [Turn((CallPlan("wait", rng.uniform(0.5, 3.0)), CallPlan("write", 0.05)))]


def _limited(rng: Random) -> list[Turn]:
    errors = tuple(
        Limited("429", retry_after_s=rng.choice((None, 0.0, rng.uniform(0.5, 3.0))))
        for _ in range(rng.randint(1, 3))
    )
    return [replace(_calls(rng, "read"), errors=errors)]


def _flaky_model(rng: Random) -> list[Turn]:
    errors = tuple(Transient("cut") for _ in range(rng.randint(1, 3)))
    return [replace(_calls(rng, "write"), errors=errors)]


def _hopeless(rng: Random) -> list[Turn]:
    error: Exception = Permanent("bad key") if rng.random() < 0.5 else Transient("down")
    return [_calls(rng, "write"), replace(_calls(rng), errors=(error,) * 9)]


def _refused(rng: Random) -> list[Turn]:
    last: Finish = rng.choice(("refusal", "length", "stop"))
    return [_calls(rng, "write_refused"), _calls(rng, "read"), Turn(finish=last)]


def _unsure(rng: Random) -> list[Turn]:
    return [_calls(rng, "write", "write_unsure", "write")]


def _pauses(rng: Random) -> list[Turn]:
    return [Turn(finish="pause"), _calls(rng, "write")]


def _asks(rng: Random) -> list[Turn]:
    """Questions: one that expires, one that waits for ever, one beside a write or a wait."""
    limit = {"timeout_s": rng.choice((0.3, 1.0, 3.0))} if rng.random() < 0.5 else {}
    ask = CallPlan("ask", 0.01, limit)
    other = rng.choice(("ask", "write", "read", "wait"))
    return [Turn((ask, CallPlan(other, _s(rng, 0.05, 0.5))))]


def _approvals(rng: Random) -> list[Turn]:
    """Calls that need a person's yes, beside a wait, a question, a write or each other."""
    if rng.random() < 0.4:  # woken by the wait, what is approved by then runs while others are open
        slow = [CallPlan("write_ask", rng.uniform(0.6, 1.5), {"expires_s": 30.0})] * 2
        return [Turn((*slow, CallPlan("wait", rng.uniform(0.3, 1.0))))]
    asks = [
        CallPlan("write_ask", rng.uniform(0.1, 1.5), {"expires_s": rng.choice((0.5, 3.0, 30.0))})
        for _ in range(rng.choice((1, 2, 3)))
    ]
    if rng.random() < 0.7:
        asks.append(CallPlan(rng.choice(("ask", "write", "wait", "wait")), rng.uniform(0.05, 0.5)))
    rng.shuffle(asks)
    return [Turn(tuple(asks))]


def _spawns(rng: Random) -> list[Turn]:
    """One or two children; one may fail, and its parent with it."""
    calls = [_spawn(rng) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.3:
        calls.append(CallPlan(rng.choice(("ask", "write", "wait")), rng.uniform(0.05, 0.6)))
    return [Turn(tuple(calls))]


def _spawn(rng: Random) -> CallPlan:
    script = rng.choice((_reads, _writes, _waits, _hopeless, _asks))(rng)
    how = {"on_failure": rng.choice(("collect", "fail"))}
    return CallPlan("spawn", 0.01, how, Plan((*script[:1], *script[1:][-1:])))


def _kills(rng: Random) -> list[Turn]:
    """A call that kills its process, some times or always."""
    return [Turn((CallPlan("kill", _s(rng, 0.02, 0.3), {"times": rng.choice((1, 2, 3, 99))}),))]


SCRIPTS: Final[tuple[Callable[[Random], list[Turn]], ...]] = (
    _reads, _writes, _writes, _slow_writes, _waits, _limited, _flaky_model, _hopeless, _refused,
    _unsure, _pauses, _asks, _asks, _approvals, _approvals, _spawns, _spawns, _kills,
)  # fmt: skip
ACTS: Final[tuple[Act, ...]] = (
    "cancel", "cancel", "pause", "pause", "resume", "steer", "steer", "answer", "resolve",
    "decide", "decide", "decide",
)  # fmt: skip


def make_plan(rng: Random, fault_s: float) -> Plan:
    """Draw one run of four steps or more: two turns with tools, or one longer script."""
    turns = rng.choice(SCRIPTS)(rng)
    if len(turns) == 1:
        turns = [*turns, *rng.choice(SCRIPTS[:6])(rng)]
    plan = Plan(tuple(turns), starts_s=rng.random() * fault_s / 3)
    acts: list[tuple[float, Act]] = []
    if any(call.tool == "write_ask" for turn in turns for call in turn.calls):
        first = plan.starts_s + rng.uniform(0.4, 1.5)
        acts += [(first + 0.4 * n, "decide") for n in range(rng.randint(1, 6))]
    while rng.random() < 0.5:
        act, at = rng.choice(ACTS), plan.starts_s + rng.random() * fault_s
        acts.append((at, act))
        if rng.random() < 0.2:
            acts.append((at + 0.3, act))  # asked twice
    plan = replace(plan, acts=tuple(acts))
    dice = rng.random()
    if dice < 0.05:
        return replace(plan, max_turns=2)
    if dice < 0.15:
        return replace(plan, deadline_s=rng.uniform(0.5, 8.0))
    if dice < 0.18:
        return replace(plan, max_tokens=30)
    if dice < 0.28:
        return replace(plan, key="k")
    if dice < 0.36:
        return replace(plan, behind=True)
    return plan
