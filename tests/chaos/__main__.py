"""`python -m tests.chaos`: random faults against real processes, and a JSON report at the end."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from pathlib import Path

from tests.chaos.small_disk import own_mounts

_KILL_EVERY_S = 3.0
_FREEZE_EVERY_S = 10.0
_RUNS_PER_S = 4


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--small", action="store_true", help="300 runs and 40 faults, for CI")
    parser.add_argument("--runs", type=int, help="runs to submit")
    parser.add_argument("--faults", type=int, help="faults to make")
    parser.add_argument("--seconds", type=float, help="how long there are faults")
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier go")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a green go as well")
    parser.add_argument("--out", type=Path, help="write the report here as well")
    parser.add_argument(
        "--kills-only", type=int, default=0, metavar="N",
        help="kill N worker processes one after the other, and nothing else but --freezes",
    )  # fmt: skip
    parser.add_argument(
        "--freezes", type=int, default=0, metavar="N",
        help="with --kills-only: then stop N worker processes beyond their lease",
    )  # fmt: skip
    parser.add_argument(
        "--p99-limit", type=float, metavar="S",
        help="be red when a killed process's runs wait longer than that (99 of 100)",
    )  # fmt: skip
    given = parser.parse_args()
    if given.freezes and not given.kills_only:
        parser.error("--freezes needs --kills-only: they come after the kills")
    return given


def main() -> int:
    """Run it; returns 1 when something was lost, doubled, left out or stuck."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is taken down
    no_mounts = own_mounts()  # before any thread starts
    from tests.chaos.runner import FULL, SMALL, Chaos, Options, Size, say

    base = SMALL if given.small else FULL
    size = Size(given.runs or base.runs, given.faults or base.faults, given.seconds or base.seconds)
    if given.kills_only:
        seconds = given.kills_only * _KILL_EVERY_S * 4 + given.freezes * _FREEZE_EVERY_S
        size = Size(int(seconds * _RUNS_PER_S), given.kills_only, seconds)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(2**32)
    say(f"seed {seed}")
    if no_mounts:
        say(no_mounts)
    options = Options(
        seed,
        kills=given.kills_only,
        freezes=given.freezes,
        disk=no_mounts is None,
        keep=given.keep,
        p99_limit_s=given.p99_limit,
    )
    chaos = Chaos(size, options)
    report = chaos.run()
    text = json.dumps(report, indent=2, default=str)
    if given.out:
        given.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return int(not report["green"])


if __name__ == "__main__":
    sys.exit(main())
