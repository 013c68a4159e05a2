"""(m) Thirty scripted tasks under one fault at a time: Harness, a plain loop, LangGraph.

The faults: none, the first tool call of a task fails, a malformed call, a 429, a cut stream, an
injected instruction that the model obeys, a window that overflows, a worker process killed in the
middle of an effect.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.agents import baseline, platform
from benchmarks.agents.report import Done, Score, judge
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome
from benchmarks.stack import ROOT, BenchFailed, Stack
from harness_common.embedded import create_database, drop_database
from harness_common.embedded.process import end_process, spawn

TITLE: Final = "thirty scripted tasks under faults, beside a plain loop and LangGraph"
FAULTS: Final = (
    "none", "tool_fails", "malformed", "limited", "cut", "injection", "overflow", "killed",
)  # fmt: skip
_QUICK: Final = ("none", "injection", "killed")
HARNESS: Final = "Harness"
_ASKED: Final = 95.0

Json = Any


def run(stack: Stack, options: Options) -> Outcome:
    """Play every fault on every system."""
    scores: list[Score] = []
    for fault in _QUICK if options.quick else FAULTS:
        for system, play in _systems(stack).items():
            folder = stack.folder / f"agents-{system}-{fault}".replace(" ", "-")
            folder.mkdir()
            with _brain(fault) as base_url:
                begun = time.monotonic()
                score = play(fault, base_url, folder)
                score = replace(score, seconds=round(time.monotonic() - begun, 1))
            scores.append(score)
            stack.say(
                f"    {fault:10} {system:10} {score.succeeded} of {score.tasks} in "
                f"{score.seconds:.0f} s, {score.repeated} effects repeated, {score.unasked} unasked"
            )
    return _outcome(scores)


def _systems(stack: Stack) -> dict[str, Callable[[str, str, Path], Score]]:
    if find_spec("langgraph") is None or find_spec("langgraph.checkpoint.postgres") is None:
        raise BenchFailed("LangGraph is not installed: `make setup` brings it for development")
    return {
        HARNESS: lambda *a: _harness(stack, *a),
        "plain loop": _plain,
        "LangGraph": lambda *a: _langgraph(stack, *a),
    }


def _harness(stack: Stack, fault: str, base_url: str, folder: Path) -> Score:
    env = platform.environment(base_url, fault, folder)
    with stack.lab(f"agents_{fault}", env) as lab:
        done, asked = platform.run(lab, fault, folder)
    return replace(judge(HARNESS, fault, done, folder, 0.0), asked=dict(asked))


def _plain(fault: str, base_url: str, folder: Path) -> Score:
    done = baseline.run("benchmarks.agents.plain_loop", base_url, fault, folder)
    return judge("plain loop", fault, done, folder, 0.0)


def _langgraph(stack: Stack, fault: str, base_url: str, folder: Path) -> Score:
    admin, name = stack.postgres.admin_url, f"langgraph_{fault}"
    url = create_database(admin, name)
    try:
        done: list[Done] = baseline.run(
            "benchmarks.agents.langgraph_loop", base_url, fault, folder, "--database-url", url
        )
    finally:
        drop_database(admin, name)
    return judge("LangGraph", fault, done, folder, 0.0)


@contextlib.contextmanager
def _brain(fault: str) -> Iterator[str]:
    """Start the scripted model in a process of its own; gives its base URL."""
    argv = [sys.executable, "-m", "benchmarks.agents.brain", "--fault", fault]
    process = spawn(argv, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line.startswith("port="):
            raise BenchFailed(f"the scripted model did not start: {line!r}")
        yield f"http://127.0.0.1:{line.strip().removeprefix('port=')}/v1"
    finally:
        end_process(process, ())


def _outcome(scores: Sequence[Score]) -> Outcome:
    measures, problems = [], []
    for score in scores:
        ours = score.system == HARNESS
        measures.append(
            Measure(
                f"{score.fault}: {score.system}", round(score.rate, 1), "% of the tasks",
                _ASKED if ours else None, note=_note(score),
            )
        )  # fmt: skip
        if ours and (score.repeated or score.unasked):
            problems.append(
                f"{score.fault}: {score.repeated} effects repeated, {score.unasked} unasked"
            )
    return Outcome(measures, {"scores": [asdict(score) for score in scores]}, problems)


def _note(score: Score) -> str:
    parts = [f"{score.turns} answers", f"{score.tokens} tokens", f"{score.seconds:.0f} s"]
    bad = {"repeated": score.repeated, "unasked": score.unasked, "missing": score.missing}
    parts += [f"{n} effects {what}" for what, n in bad.items() if n]
    parts += [f"{n} {what}" for what, n in score.asked.items()]
    return ", ".join(parts)
