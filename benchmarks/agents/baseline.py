"""Runs the tasks on a baseline: a process that is started again when it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.agents import tools
from benchmarks.agents.report import Done
from benchmarks.agents.tasks import TASKS
from benchmarks.stack import ROOT, BenchFailed
from harness_common.embedded.process import spawn

PART: Final = 6
"""Tasks that are under way at once; under the fault `killed` the process dies once in each part."""
_LIMIT_S: Final = 120.0


def run(module: str, base_url: str, fault: str, folder: Path, *extra: str) -> list[Done]:
    """Do all tasks, a part at a time."""
    out = folder / "done.jsonl"
    out.touch()
    for at in range(0, len(TASKS), PART):
        _part(module, base_url, fault, folder, [t.id for t in TASKS[at : at + PART]], extra)
    done = [json.loads(line) for line in out.read_text().splitlines()]
    return [
        Done(d["task"], d["answer"], d.get("turns", 0), d.get("tokens", 0), d.get("error", ""))
        for d in done
    ]


def _part(
    module: str, base_url: str, fault: str, folder: Path, names: Sequence[str], extra: Sequence[str]
) -> None:
    out, effects = folder / "done.jsonl", folder / "effects.txt"
    left, kill = list(names), fault == "killed"
    size = effects.stat().st_size if effects.exists() else 0
    deadline = time.monotonic() + _LIMIT_S
    while left:
        argv = [sys.executable, "-m", module, "--base-url", base_url, "--out", str(out)]
        process = spawn(
            [*argv, "--tasks", ",".join(left), *extra],
            env={**os.environ, tools.FAULT: fault, tools.FOLDER: str(folder)},
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise BenchFailed(f"{module} did not end its tasks in {_LIMIT_S:g} s: {left}")
            if kill and _is_time(effects, size, folder, left):
                process.send_signal(signal.SIGKILL)
                kill = False
            time.sleep(0.01)
        ended = {json.loads(line)["task"] for line in out.read_text().splitlines()}
        before, left = left, [name for name in left if name not in ended]
        if left == before and process.returncode not in {0, -signal.SIGKILL}:
            raise BenchFailed(f"{module} ended with {process.returncode} and did nothing")


def _is_time(effects: Path, size: int, folder: Path, names: Sequence[str]) -> bool:
    """Strike while an effect is under way, or, where a part has none, in the middle of a read."""
    if effects.exists() and effects.stat().st_size > size:
        return True
    return all(name.startswith("r") for name in names) and any(
        (folder / f"seen-{name}").exists() for name in names
    )
