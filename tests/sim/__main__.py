"""`python -m tests.sim`: play seeds, show one, or prove that the simulator sees what it should.

--seeds 10000 [--start N] [--seconds 120] [--json]   play seeds; exit 1 on a violation
--seed N --trace                                     play one seed and print what happened
--mutate NAME                                        break one mechanism first
--gate [--seeds 10000] [--json]                      all seeds green, and every mutation seen
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.sim.coverage import missing_faults, missing_pairs
from tests.sim.mutations import MUTATIONS
from tests.sim.sim import Result, run_seed

GATE_SEEDS: Final = 1_000
TRACE: Final = 20_000
COVERAGE_FROM: Final = 2_000
"""From this many seeds on, everything legal must have been reached."""


@dataclass
class Report:
    """What many seeds did together."""

    seeds: int = 0
    runs: int = 0
    steps: int = 0
    events: int = 0
    virtual_s: float = 0.0
    faulty: int = 0
    cpu_s: float = 0.0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: dict[str, list[int]] = field(default_factory=dict)
    first: Result | None = None

    def add(self, one: Result) -> None:
        self.seeds += 1
        self.runs += one.runs
        self.steps += one.steps
        self.events += one.events
        self.virtual_s += one.virtual_s
        self.faulty += bool(one.faults)
        self.faults += one.faults
        self.pairs += one.pairs
        self.counts += one.counts
        if one.violation is not None:
            self.violations.setdefault(one.violation.name, []).append(one.seed)
            self.first = self.first or one

    def to_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "runs": self.runs,
            "steps": self.steps,
            "events": self.events,
            "virtual_s": round(self.virtual_s),
            "seeds_with_faults": self.faulty,
            "seconds": round(self.seconds, 1),
            "cpu_s": round(self.cpu_s, 1),
            "ms_per_seed": round(self.cpu_s / max(1, self.seeds) * 1000, 2),
            "faults": dict(self.faults.most_common()),
            "pairs": {f"{s} {i}": n for (s, i), n in sorted(self.pairs.items())},
            "counts": dict(self.counts),
            "missing_pairs": self.missing_pairs(),
            "missing_faults": missing_faults(self.faults, self.counts),
            "violations": {
                name: {"seeds": len(seeds), "first": seeds[:5]}
                for name, seeds in self.violations.items()
            },
        }

    def missing_pairs(self) -> list[str]:
        return missing_pairs(self.pairs)

    def bad(self) -> bool:
        """Tell whether an invariant broke, or the workload did not reach what it should."""
        reached = not (self.missing_pairs() or missing_faults(self.faults, self.counts))
        return bool(self.violations) or (self.seeds >= COVERAGE_FROM and not reached)


def play(seeds: Iterable[int], *, mutate: str, seconds: float, stop_at_red: bool) -> Report:
    """Play seeds until they, or the time, are used up."""
    report, began, cpu = Report(), time.monotonic(), time.process_time()
    gc.disable()  # one seed's garbage is small: collected in bulk below
    for seed in seeds:
        one = run_seed(seed, mutate=mutate)
        report.add(one)
        if one.violation is not None and not stop_at_red:
            tell(f"seed {seed}: {one.violation}")
        if report.seeds % 20 == 0:
            gc.collect()
        if report.seeds % 1_000 == 0:
            red = sum(map(len, report.violations.values()))
            tell(f"{report.seeds} seeds, {report.steps} steps, "
                 f"{time.monotonic() - began:.0f} s, {red} violations")  # fmt: skip
        if time.monotonic() - began > seconds or (stop_at_red and report.violations):
            break
    gc.enable()
    report.seconds, report.cpu_s = time.monotonic() - began, time.process_time() - cpu
    return report


def tell(text: str) -> None:
    """Say how far it is, on stderr."""
    print(f"sim: {text}", file=sys.stderr, flush=True)


def show(seed: int, mutate: str) -> int:
    """Play one seed with its trace."""
    one = run_seed(seed, mutate=mutate, keep_trace=TRACE)
    print("\n".join(one.trace))
    print(f"seed {seed}: {one.violation or 'no violation'}; digest {one.digest:08x}")
    return int(one.violation is not None)


def gate(seeds: Sequence[int], seconds: float, as_json: bool) -> int:
    """All seeds must be green and reach what they should, and every mutation must be seen within
    `GATE_SEEDS` seeds.
    """
    began = time.monotonic()
    green = play(seeds, mutate="", seconds=seconds, stop_at_red=False)
    failed = green.bad() or green.seeds < len(seeds)
    seen: dict[str, Any] = {}
    for name, what in MUTATIONS.items():
        left = max(0.0, seconds - (time.monotonic() - began))
        report = play(range(GATE_SEEDS), mutate=name, seconds=left, stop_at_red=True)
        first, found = report.first, report.first and report.first.violation
        failed = failed or found is None
        seen[name] = {
            "what": what, "seeds": report.seeds, "seconds": round(report.seconds, 1),
            "seed": first.seed if first else None, "violation": str(found) if found else None,
        }  # fmt: skip
        verdict = f"red    seed {first.seed}: {found}" if first else "GREEN"
        tell(f"{name:14} {verdict[:110]}  ({what})")
    spent = round(time.monotonic() - began, 1)
    if as_json:
        out = {"passed": not failed, "seconds": spent, "seeds": green.to_json(), "mutations": seen}
        print(json.dumps(out, indent=1))
    else:
        summary(green)
    red = sum(one["violation"] is not None for one in seen.values())
    reds = sum(map(len, green.violations.values()))
    tell(f"gate: {'FAILED' if failed else 'passed'}: {red} of {len(seen)} mutations were seen, "
         f"{green.seeds} seeds, {reds} of them red; {spent} s")  # fmt: skip
    return int(failed)


def summary(report: Report) -> None:
    """Print what was played, for people."""
    out = report.to_json()
    print(f"{out['seeds']} seeds ({out['seeds_with_faults']} with faults), {out['runs']} runs, "
          f"{out['steps']} steps, {out['virtual_s']} virtual s; {out['cpu_s']} s of CPU, "
          f"{out['ms_per_seed']} ms a seed")  # fmt: skip
    for title in ("faults", "pairs", "counts"):
        print(f"{title}: " + ", ".join(f"{k} {n}" for k, n in out[title].items()))
    for title in ("missing_pairs", "missing_faults", "violations"):
        if out[title]:
            print(f"{title}: {out[title]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--mutate", default="", choices=["", *MUTATIONS], metavar="NAME")
    parser.add_argument("--gate", action="store_true")
    asked = parser.parse_args()
    gc.collect()
    gc.freeze()
    if asked.seed is not None and asked.trace:
        return show(asked.seed, asked.mutate)
    if asked.seed is not None:
        asked.start, asked.seeds = asked.seed, 1
    seeds = range(asked.start, asked.start + asked.seeds)
    if asked.gate:
        return gate(seeds, asked.seconds, asked.json)
    report = play(seeds, mutate=asked.mutate, seconds=asked.seconds, stop_at_red=False)
    if asked.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        summary(report)
    if report.seeds < asked.seeds:
        tell(f"the time was up after {report.seeds} of {asked.seeds} seeds")
    if report.first is not None:
        print(f"\nThe first violation again, with its trace (--seed {report.first.seed} --trace):",
              file=sys.stderr)  # fmt: skip
        again = run_seed(report.first.seed, mutate=asked.mutate, keep_trace=TRACE)
        print("\n".join(again.trace[-80:]), file=sys.stderr)
    return int(report.bad())


if __name__ == "__main__":
    sys.exit(main())
