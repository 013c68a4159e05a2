"""Runs the tasks on Harness: real API, scheduler and workers, and a person who decides.

The person approves what a task asks for and denies the rest, and says of an effect whose outcome is
unknown what the file of effects shows: both as an operator would, over the API.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.agents import tools
from benchmarks.agents.baseline import PART
from benchmarks.agents.brain import WINDOW_TOKENS
from benchmarks.agents.report import Done
from benchmarks.agents.tasks import BY_ID, TASKS, Task
from benchmarks.stack import BenchFailed, Lab
from harness_api.client import Client
from harness_api.client.errors import ApiError
from harness_api.client.types import Approval, Effect, Run

Json = Any
_LIMIT_S: Final = 120.0
_KINDS: Final = ("retrieval", "data", "orchestration")
"""Of tasks: each has an agent, with the preset of that name."""


def environment(base_url: str, fault: str, folder: Path) -> dict[str, str]:
    """Return what the processes of the lab need."""
    return {
        "HARNESS_OPENAI_BASE_URL": base_url,
        "HARNESS_WORKER__TOOLS": '["benchmarks.agents.user_tools"]',
        "HARNESS_WORKER__LEASE_S": "3",
        "HARNESS_WORKER__RENEW_S": "1",
        tools.FAULT: fault,
        tools.FOLDER: str(folder),
    }


def run(lab: Lab, fault: str, folder: Path) -> tuple[list[Done], Counter[str]]:
    """Do all tasks, a part at a time; returns what came of them and what a person was asked."""
    argv = [sys.executable, "-m", "harness_common.store.bootstrap"]
    subprocess.run(argv, env=lab.environment(), check=True, stdout=subprocess.DEVNULL)
    key = (lab.folder / "data" / "admin.key").read_text().strip()
    lab.start_scheduler()
    lab.start_workers(2)
    with Client(lab.start_api(), key) as client:
        _apply_agents(client, fault)
        person = Person(client, folder)
        done: list[Done] = []
        with person.at_work():
            for at in range(0, len(TASKS), PART):
                done += _part(lab, client, TASKS[at : at + PART], fault, folder)
        return done, person.asked


def _apply_agents(client: Client, fault: str) -> None:
    for kind in _KINDS:
        spec: dict[str, Json] = {
            "model": "openai/brain",
            "system": "You are a careful assistant. Use the tools; answer when you are done.",
            "preset": kind,
            "tools": list(tools.descriptions()),
            "retry": {"base_s": 0.2},
        }
        if fault == "overflow":
            spec["context"] = {"window_tokens": WINDOW_TOKENS}
        client.agents.apply(kind, spec)


def _part(lab: Lab, client: Client, part: tuple[Task, ...], fault: str, folder: Path) -> list[Done]:
    effects = folder / "effects.txt"
    size = effects.stat().st_size if effects.exists() else 0
    runs = {task.id: client.runs.create(task.kind, task.prompt).id for task in part}
    kill, deadline = fault == "killed", time.monotonic() + _LIMIT_S
    while True:
        if kill and _is_time(effects, size, folder, part):
            kill = not _kill_one(lab)
        found = {name: client.runs.get(run_id) for name, run_id in runs.items()}
        if all(run.is_over for run in found.values()):
            return [_done(name, run) for name, run in found.items()]
        if time.monotonic() > deadline:
            left = {name: run.status for name, run in found.items() if not run.is_over}
            raise BenchFailed(f"runs did not end in {_LIMIT_S:g} s: {left}")
        lab.check()
        time.sleep(0.02 if kill else 0.2)


def _is_time(effects: Path, size: int, folder: Path, part: tuple[Task, ...]) -> bool:
    if any(task.kind != "retrieval" for task in part):
        return effects.exists() and effects.stat().st_size > size
    return any((folder / f"seen-{task.id}").exists() for task in part)


def _kill_one(lab: Lab) -> bool:
    """Kill -9 a worker process that holds a run; False when none does."""
    with psycopg.connect(lab.database_url, autocommit=True) as conn:
        row = conn.execute(
            "SELECT w.pid FROM runs r JOIN workers w ON w.incarnation = r.claimed_by "
            "WHERE r.claim_id IS NOT NULL AND w.died_at IS NULL LIMIT 1"
        ).fetchone()
    if row is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(row[0], signal.SIGKILL)
    return True


def _done(name: str, run: Run) -> Done:
    error = "" if run.error is None else f"{run.stop_reason}: {run.error}"[:300]
    tokens = run.usage.input_tokens + run.usage.output_tokens
    return Done(name, run.output, run.turn, tokens, error)


class Person:
    """Decides what the platform asks a person."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._stop = threading.Event()
        self.asked: Counter[str] = Counter()

    @contextlib.contextmanager
    def at_work(self) -> Any:  # noqa: ANN401 - a context manager
        """Decide in a thread of its own until the block ends."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(10)

    def _work(self) -> None:
        while not self._stop.wait(0.1):
            for approval in list(self._client.approvals.list(status="pending")):
                with contextlib.suppress(ApiError):
                    self._decide(approval)
            for effect in list(self._client.effects.list()):
                with contextlib.suppress(ApiError):
                    self._resolve(effect)

    def _decide(self, approval: Approval) -> None:
        line = _line(approval.tool, approval.arguments)
        wanted = line in BY_ID[approval.arguments["task"]].truth()[1]
        if wanted:
            self._client.approvals.approve(approval.id, approval.digest)
        else:
            self._client.approvals.deny(approval.id, "nobody asked for this")
        self.asked["approved" if wanted else "denied"] += 1

    def _resolve(self, effect: Effect) -> None:
        """Look whether it happened: then its result is known, else it is to be done."""
        line = _line(effect.tool, effect.arguments)
        path = self._folder / "effects.txt"
        happened = path.exists() and line in path.read_text().splitlines()
        own = {k: v for k, v in effect.arguments.items() if k not in {"task", "n"}}
        if happened:
            said = tools.result(effect.arguments["task"], effect.arguments["n"], effect.tool, own)
            self._client.effects.resolve(
                effect.run_id, effect.call, "succeeded", "it is in the file", said
            )
        else:
            self._client.effects.resolve(
                effect.run_id, effect.call, "run_again", "it is not in the file"
            )
        self.asked["unknown, happened" if happened else "unknown, done again"] += 1


def _line(tool: str, arguments: Json) -> str:
    own = {k: v for k, v in arguments.items() if k not in {"task", "n"}}
    return tools.effect(arguments["task"], tool, own)
