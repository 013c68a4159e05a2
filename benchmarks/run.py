"""Measure the platform: `python -m benchmarks.run`, which is `make bench`.

Writes benchmarks/results/latest.json and prints a table. Exits 1 when a check fails (a step lost or
committed twice, say), 130 on Ctrl-C; the table says which targets hold. What each
benchmark does and how to read it: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks import (
    cancel,
    fairness,
    lists,
    long_run,
    model_calls,
    per_step,
    prune_load,
    queue_million,
    sandbox,
    start_latency,
    state_writes,
    steps,
    stream_deltas,
    waiting,
)
from benchmarks.agents import run as agents
from benchmarks.options import Options
from benchmarks.report import RESULTS, Json, Outcome, facts, table, to_json, write
from benchmarks.stack import BenchFailed, Stack
from harness_common.core.errors import HarnessError

Benchmark = Callable[[Stack, Options], Outcome]

BENCHMARKS: Final[dict[str, tuple[str, Benchmark]]] = {
    "a": (steps.TITLE, steps.run),
    "b": (start_latency.TITLE, start_latency.run),
    "c": (model_calls.TITLE, model_calls.run),
    "d": (long_run.TITLE, long_run.run),
    "e": (per_step.TITLE, per_step.run),
    "f": (cancel.TITLE, cancel.run),
    "g": (state_writes.TITLE, state_writes.run),
    "h": (waiting.TITLE, waiting.run),
    "i": (fairness.TITLE, fairness.run),
    "j": (queue_million.TITLE, queue_million.run),
    "k": (sandbox.TITLE, sandbox.run),
    "l": (stream_deltas.TITLE, stream_deltas.run),
    "m": (agents.TITLE, agents.run),
    "n": (lists.TITLE, lists.run),
    "o": (prune_load.TITLE, prune_load.run),
}
_BEGUN: Final = time.monotonic()


def say(text: str) -> None:
    """Show progress."""
    sys.stderr.write(f"{time.monotonic() - _BEGUN:7.1f} s  {text}\n")
    sys.stderr.flush()


def _keys(text: str) -> list[str]:
    keys = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [key for key in keys if key not in BENCHMARKS]
    if unknown or not keys:
        known = ",".join(BENCHMARKS)
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {known}")
    return keys


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Measure the platform on this machine."
    )
    parser.add_argument("--only", type=_keys, default=list(BENCHMARKS), metavar="a,b,…")
    parser.add_argument("--quick", action="store_true", help="small counts, to try the code")
    parser.add_argument("--pairs", type=_positive, help="turns of (a) (5; with --quick 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args(argv)


def measure(stack: Stack, keys: Sequence[str], options: Options, path: Path) -> dict[str, Json]:
    """Run benchmarks one after another; one that breaks is a failed check, and the rest goes on.
    Each is in the file when it ends: what comes after may be interrupted.
    """
    sections: dict[str, Json] = {}
    for key in keys:
        title, benchmark = BENCHMARKS[key]
        where = facts(stack.folder)
        say(f"({key}) {title}")
        try:
            outcome = benchmark(stack, options)
        except (BenchFailed, HarnessError) as error:
            say(f"({key}) failed: {error}")
            outcome = Outcome([], {}, [str(error)])
        sections[key] = to_json(key, title, outcome, where)
        write(path, {key: sections[key]})
    return sections


def _interrupt(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # one is enough: clearing up takes a moment
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    args = parse(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    options = Options(args.quick, args.pairs or (1 if args.quick else 5))
    path = RESULTS / ("quick.json.tmp" if args.quick else "latest.json")
    try:
        with Stack(say) as stack:
            sections = measure(stack, args.only, options, path)
    except KeyboardInterrupt:
        say("interrupted; what had ended is in the file")
        return 130
    print(json.dumps(sections, indent=1, ensure_ascii=False) if args.json else table(sections))
    say(f"written to {path}")
    return 1 if any(section["problems"] for section in sections.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
