"""Write docs/states.md: the state machines as they are in the code, for readers and for review.

`make diagrams` runs it, and `--check` (pre-commit, tests/test_house.py) fails when the file is
stale. A rule of the run's table is a function, so where it leads is found by calling it: `SAMPLES`
has a value for every input that cannot be made without arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, get_args

from harness_common.core import inputs, rules, run, session, step, tool_call
from harness_common.core.budget import Limits
from harness_common.core.errors import IllegalTransition
from harness_common.core.message import Message, Text, ToolUse

OUT: Final = Path(__file__).parent / "states.md"
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
LATER: Final = NOW + timedelta(hours=1)

ASKS: Final = Message("assistant", (ToolUse("c", "some_tool", {}),))
SAYS: Final = Message("assistant", (Text("done"),))


def _done(result: step.StepResult) -> inputs.StepDone:
    return inputs.StepDone(result, NOW)


def _failed(failure: step.Failure) -> inputs.StepFailed:
    return inputs.StepFailed(failure, NOW)


def _waits(kind: Literal["time", "input", "child", "approval"]) -> inputs.StepDone:
    waiting = step.Wait(0, kind, LATER if kind == "time" else None)
    call = step.CallOutcome(0, "c", "t", tool_call.CallStatus.RUNNING, "", wait=waiting)
    return _done(step.ToolsWaiting((call,)))


SAMPLES: Final[Mapping[type, Mapping[str, Any]]] = {
    inputs.StepDone: {
        "the model asks for tools": _done(step.ModelAnswered(ASKS, "tool_calls", "m")),
        "the model gives its answer": _done(step.ModelAnswered(SAYS, "stop", "m")),
        "the model refuses": _done(step.ModelAnswered(SAYS, "refusal", "m")),
        "the provider pauses a long turn": _done(step.ModelAnswered(SAYS, "pause", "m")),
        "every tool call has ended": _done(step.ToolsDone(())),
        "a tool waits for a time": _waits("time"),
        "a tool asks a person": _waits("input"),
        "a tool waits for a child run": _waits("child"),
        "a call needs a person's approval": _waits("approval"),
        "an effect has no known outcome": _done(step.ToolsUnknown((), (0,))),
        "the owner stopped for a cancel": _done(step.StepCancelled()),
    },
    inputs.StepFailed: {
        "it may work later": _failed(step.Failure("transient", "T", "t")),
        "somebody said: not before": _failed(step.Failure("limited", "L", "l", 60.0)),
        "it would fail again": _failed(step.Failure("permanent", "P", "p")),
    },
    inputs.CancelRequested: {"": inputs.CancelRequested("somebody")},
    inputs.OwnerLost: {
        "": inputs.OwnerLost("a worker", "killed"),
        "the process held nothing else": inputs.OwnerLost("a worker", "killed", solo=True),
    },
    inputs.PauseRequested: {"": inputs.PauseRequested("somebody")},
    inputs.ResumeRequested: {"": inputs.ResumeRequested("somebody")},
    inputs.InputGiven: {"": inputs.InputGiven("somebody", 0, "yes")},
    inputs.Steered: {"": inputs.Steered("somebody", "look there")},
    inputs.EffectsResolved: {"": inputs.EffectsResolved("somebody")},
    inputs.Released: {"": inputs.Released("stopping")},
    inputs.ApprovalDecided: {
        "the last one": inputs.ApprovalDecided("somebody", "appr_0", 0, "t", "approved"),
        "others are pending": inputs.ApprovalDecided("somebody", "appr_9", 9, "t", "denied"),
    },
}


def _samples(kind: type) -> Mapping[str, Any]:
    if kind in SAMPLES:
        return SAMPLES[kind]
    try:
        return {"": kind()}
    except TypeError:
        raise SystemExit(
            f"docs/diagrams.py: no sample of the input {kind.__name__}; add one to SAMPLES."
        ) from None


def _situations(status: run.Status) -> Iterator[tuple[str, run.RunState]]:
    """Give the states of one status in which rules decide differently, with what is special."""
    plain = run.RunState(
        status=status,
        started=True,
        claimed=status is run.Status.RUNNING,
        not_before=NOW if status in _TIMED else None,
        waiting={"for": "input", "calls": [_call("input")]},
    )
    if status is run.Status.WAITING_APPROVAL:
        yield "it waits for an effect's outcome", replace(plain, not_before=None)
        both = {"for": "approval", "calls": [_call("input"), _call("approval")]}
        yield "a question is open too", replace(plain, waiting=both)
        plain = replace(plain, waiting={"for": "approval", "calls": [_call("approval")]})
    yield "", plain
    yield "its wall clock is over", replace(plain, limits=Limits(deadline=NOW))
    yield "a pause was asked", replace(plain, pause_requested=True)
    if status is not run.Status.RUNNING:
        return
    yield "nobody owns it", replace(plain, claimed=False)
    late = Limits(deadline=NOW)
    yield "nobody owns it and its wall clock is over", replace(plain, claimed=False, limits=late)
    yield "a cancel was asked", replace(plain, cancel_requested=True)
    yield "no turn is left", replace(plain, limits=Limits(max_turns=1))
    yield "it failed too often", replace(plain, failures=1_000)
    yield "owners died before", replace(plain, deaths=1_000)


_TIMED: Final = {run.Status.DELAYED, run.Status.WAITING_INPUT, run.Status.WAITING_APPROVAL}


def _call(kind: str) -> dict[str, Any]:
    """Give a call that a run waits for, until now."""
    index = int(kind == "approval")
    said = {
        "call": f"1.{index}",
        "index": index,
        "kind": kind,
        "until": NOW.isoformat(),
        "tool": "t",
    }
    return {**said, "approval": "appr_0"} if kind == "approval" else said


Leads = dict[run.Status, list[str]]


def leads(status: run.Status, kind: type) -> Leads:
    """Return where an input of `kind` may lead from `status`, and when; empty when it is illegal.

    What happens without anything special comes first; a special situation only where it changes
    that.
    """
    out: Leads = {}
    if (status, kind) not in rules.TABLE:
        return out
    for what, sample in _samples(kind).items():
        usual: run.Status | None = None
        for special, state in _situations(status):
            try:
                target = rules.advance(state, [sample], NOW).state.status
            except IllegalTransition:
                continue  # not yet: its time has not come
            usual = target if usual is None else usual
            if special and target is usual:
                continue
            out.setdefault(target, []).append(", ".join(w for w in (what, special) if w))
    return out


def _inputs() -> tuple[type, ...]:
    return get_args(inputs.Input)


def _edges(start: str, pairs: Iterable[tuple[str, str, str]], ends: Iterable[str]) -> str:
    """Draw one mermaid state diagram; edges between the same two states share their label."""
    labels: dict[tuple[str, str], list[str]] = {}
    for source, target, label in pairs:
        labels.setdefault((source, target), []).append(label)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    for (source, target), words in labels.items():
        said = ", ".join(w for w in words if w)
        lines.append(f"    {source} --> {target}" + (f" : {said}" if said else ""))
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```"])


def _run_diagram() -> str:
    pairs = (
        (str(s), str(t), kind.__name__)
        for s in run.Status
        for kind in _inputs()
        for t in leads(s, kind)
    )
    return _edges(run.Status.QUEUED, pairs, sorted(run.TERMINAL))


def _matrix() -> str:
    kinds = _inputs()
    rows = ["| | " + " | ".join(k.__name__ for k in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for status in run.Status:
        cells = [", ".join(leads(status, k)) or "·" for k in kinds]
        rows.append(f"| **{status}** | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _details() -> str:
    rows = ["| from | input | to | when |", "|---|---|---|---|"]
    for status in run.Status:
        for kind in _inputs():
            targets = leads(status, kind)
            plain = "always" if len(targets) == 1 else "otherwise"
            for target, whens in targets.items():
                when = "; ".join(w or plain for w in whens)
                rows.append(f"| {status} | {kind.__name__} | {target} | {when} |")
    return "\n".join(rows)


def _unreached() -> str:
    seen = {run.Status.QUEUED}
    for status in run.Status:
        for kind in _inputs():
            seen |= leads(status, kind).keys()
    missing = [f"`{s}`" for s in run.Status if s not in seen]
    if not missing:
        return "Every state can be reached."
    return f"No rule leads to {', '.join(missing)} yet: the states are reserved."


def _moves(start: StrEnum, moves: Mapping[Any, Iterable[StrEnum]]) -> str:
    pairs = ((str(s), str(t), "") for s, targets in moves.items() for t in sorted(targets))
    return _edges(start, pairs, [str(s) for s, targets in moves.items() if not targets])


def render() -> str:
    """Build the whole page."""
    parts = [
        "# States",
        "<!-- Written by docs/diagrams.py (`make diagrams`). Change the code, not this page. -->",
        "The machines as the code has them. [Concepts](concepts.md) says what the words mean.",
        "## Run",
        "`harness_common/core/rules.py`, `TABLE`. `cancelling` is shown to people and not stored: "
        "running, with a cancel asked for. " + _unreached(),
        _run_diagram(),
        "Every pair of state and input. `·` is illegal: it raises `IllegalTransition` and nothing "
        "is written.",
        _matrix(),
        "What decides between several next states:",
        _details(),
        "## Tool call",
        "`harness_common/core/tool_call.py`, `MOVES`.",
        _moves(tool_call.CallStatus.PROPOSED, tool_call.MOVES),
        "## Session",
        "`harness_common/core/session.py`, `MOVES`. Derived from the session's runs and from "
        "whether somebody closed it.",
        _moves(session.SessionStatus.CREATED, session.MOVES),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is stale."""
    page = render()
    if arguments == ["--check"]:
        if not OUT.exists() or OUT.read_text(encoding="utf-8") != page:
            print(
                f"{OUT.name} is stale: run `make diagrams` and commit the result.", file=sys.stderr
            )
            return 1
        return 0
    if arguments:
        print("usage: python docs/diagrams.py [--check]", file=sys.stderr)
        return 2
    OUT.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
