"""A rolling upgrade under load, with real processes of two versions.

`python -m tests.deploy.rehearsal` does it by hand. Two APIs, two schedulers and two workers of an
older revision of this repository, with its own schema; then `migrate --phase pre` of this one,
every process replaced one after the other by SIGTERM, and `--phase post`. All the while runs with
effects are submitted to both APIs. In the end every run has succeeded once, with each effect once.
"""

from __future__ import annotations

import argparse
import collections
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from harness_common.embedded.process import spawn
from tests.deploy.versions import TOP, described, older_version, unpack
from tests.e2e.stack import Stack


def _said(text: str, n: int | None = None) -> dict[str, Any]:
    """Return an answer of the scripted model, with a call that leaves line `n`."""
    answer: dict[str, Any] = {"text": text, "delay_s": 0.5}
    if n is not None:
        answer["tools"] = [{"name": "leave_line", "input": {"n": n}}]
    return answer


AGENT: Final = {
    "name": "mover",
    "spec": {
        "model": "scripted/mover",
        "tools": ["leave_line"],
        "max_turns": 20,
        "model_options": {
            "script": [
                _said("one", 1),
                _said("two") | {"continue": True},
                _said("three", 2),
                _said("done"),
            ]
        },
    },
}
STEPS: Final = 6
EFFECTS: Final = 2
_TOOLS: Final = "upgrade_tools"
_ROLL: Final = ("scheduler-0", "scheduler-1", "worker-0", "worker-1", "api-0", "api-1")


class RollingStack(Stack):
    """A platform whose processes are of one version or the other, each as it was started."""

    start_s = 600.0

    def __init__(self, old: Path, **env: str) -> None:
        super().__init__(apis=2, schedulers=2, workers=2, processes=1, **env)
        self._tools = self.folder / "tools"
        self._tools.mkdir()
        source = TOP / "tests" / "deploy" / f"{_TOOLS}.py"
        (self._tools / source.name).write_text(source.read_text())
        # The current folder does not count (`-P`), so that the path alone says which version it is.
        self._extra |= {
            "PYTHONSAFEPATH": "1",
            "PYTHONPATH": self.path(old),
            "HARNESS_WORKER__TOOLS": f'["{_TOOLS}"]',
            "REHEARSAL_EFFECTS": str(self.effects),
        }

    def path(self, tree: Path) -> str:
        """Return the path of a version, and of the tools, which are the same for both."""
        return f"{tree}:{self._tools}"

    def migrate(self, tree: Path, phase: str) -> None:
        """Run this version's migration, as a deployment does."""
        argv = [sys.executable, "-m", "harness_common.store.migrate", "--phase", phase]
        subprocess.run(argv, env=self.env | {"PYTHONPATH": self.path(tree)}, check=True)

    def replace(self, name: str, tree: Path) -> float:
        """End a process by SIGTERM and start the other version in its place; how long it took to
        end, in seconds.
        """
        process, began = self.processes[name], time.monotonic()
        process.terminate()
        code = process.wait(120)
        took_s = time.monotonic() - began
        # Uvicorn ends by the signal that it was given, once it has answered what was under way.
        ended_well = (0, -signal.SIGTERM) if name.startswith("api") else (0,)
        assert code in ended_well, f"{name} ended with {code}: {self.log_of(name)[-2000:]}"
        since = self.now()
        with (self.folder / f"{name}.log").open("ab") as log:
            env = self.env | {"PYTHONPATH": self.path(tree)}
            self.processes[name] = spawn(self._argv[name], env=env, stdout=log)
        if name.startswith("api"):
            self.wait_for_api(int(name[-1]))
        elif name.startswith("worker"):
            self.wait_for_workers(1, since)
        else:
            self._wait_for_scheduler(name)
        return took_s

    def _wait_for_scheduler(self, name: str) -> None:
        """Wait until somebody leads again, whoever it is; the new one is up when it connected."""
        pid = self.processes[name].pid
        deadline = time.monotonic() + self.start_s
        seen = (
            "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name LIKE %s",
            f"scheduler-{pid}@%",
        )
        while not self.query(*seen)[0]["n"]:
            assert time.monotonic() < deadline, self.log_of(name)[-2000:]
            time.sleep(0.1)


@dataclass(slots=True)
class Load:
    """Submits runs to both APIs in turn, as a client does that tries again."""

    stack: RollingStack
    every_s: float = 0.5
    accepted: list[str] = field(default_factory=list)
    retried: int = 0
    told_to_wait: int = 0
    """Answers 503 with Retry-After: tried again with the same key, as clients are told to."""
    refused: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, from a thread of its own."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after the run that is under way."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(60)

    def _run(self) -> None:
        clients = [self.stack.client(0), self.stack.client(1)]
        n = 0
        while not self._stop.wait(self.every_s):
            n += 1
            self._submit(clients, n)
        for client in clients:
            client.close()

    def _submit(self, clients: list[httpx.Client], n: int) -> None:
        """Submit one run: a broken connection is tried at the other API with the same key."""
        key, body = uuid.uuid4().hex, {"agent": "mover", "input": f"move {n}"}
        deadline = time.monotonic() + 60
        for attempt in range(1_000):
            client = clients[(n + attempt) % 2]
            try:
                answer = client.post("/v1/runs", json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                self.retried += 1
                if time.monotonic() > deadline:
                    self.refused.append("no API for a minute")
                    return
                time.sleep(0.05)
                continue
            if answer.status_code == 503 and "retry-after" in answer.headers:
                self.told_to_wait += 1
                assert time.monotonic() < deadline, answer.text
                time.sleep(min(1.0, float(answer.headers["retry-after"])))
                continue
            if answer.status_code == 202:
                self.accepted.append(answer.json()["id"])
            else:
                self.refused.append(f"{answer.status_code} {answer.text[:200]}")
            return


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    old: str
    accepted: int
    retried: int
    told_to_wait: int
    refused: tuple[str, ...]
    lost: tuple[dict[str, Any], ...]
    """Runs that did not succeed."""
    doubled: tuple[str, ...]
    """Effects that happened twice, or steps that did."""
    missing: int
    """Effects that did not happen."""
    given_back: int
    """Times an old worker met something newer and gave it back."""
    ended_s: dict[str, float]
    took_s: float

    @property
    def is_clean(self) -> bool:
        """Nothing lost, nothing twice, nothing refused."""
        return not (self.refused or self.lost or self.doubled or self.missing)


def rehearse(revision: str, folder: Path, *, settle_s: float = 5.0) -> Outcome:
    """Do the upgrade from a revision to what stands in the working tree."""
    old, began = unpack(revision, folder), time.monotonic()
    with RollingStack(old, HARNESS_WORKER__GRACE_S="5") as stack:
        with stack.client() as client:
            assert client.post("/v1/agents", json=AGENT).status_code == 201
        load = Load(stack)
        load.start()
        time.sleep(settle_s)
        stack.migrate(TOP, "pre")
        ended_s = {}
        for name in _ROLL:
            time.sleep(settle_s)
            ended_s[name] = stack.replace(name, TOP)
        stack.migrate(TOP, "post")
        time.sleep(settle_s)
        load.stop()
        _wait_for(stack, load.accepted, 180)
        logs = "".join(stack.log_of(name) for name in ("worker-0", "worker-1"))
        return Outcome(
            old=described(revision),
            accepted=len(load.accepted),
            retried=load.retried,
            told_to_wait=load.told_to_wait,
            refused=tuple(load.refused),
            lost=_lost(stack, load.accepted),
            doubled=_doubled(stack),
            missing=EFFECTS * len(load.accepted) - len(_effects(stack)),
            given_back=logs.count("run.needs_newer_version"),
            ended_s=ended_s,
            took_s=time.monotonic() - began,
        )


def _uuids(ids: list[str]) -> list[uuid.UUID]:
    return [uuid.UUID(hex=one.removeprefix("run_")) for one in ids]


def _wait_for(stack: Stack, ids: list[str], seconds: float) -> None:
    """Wait until every run has ended; what has not is counted as lost."""
    query = "SELECT count(*) AS n FROM runs WHERE id = ANY(%s) AND finished_at IS NULL"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and stack.query(query, _uuids(ids))[0]["n"]:
        time.sleep(0.5)


def _lost(stack: Stack, ids: list[str]) -> tuple[dict[str, Any], ...]:
    rows = stack.query(
        "SELECT id, status, step, stop_reason, error FROM runs "
        "WHERE id = ANY(%s) AND (status <> 'succeeded' OR step <> %s)",
        _uuids(ids),
        STEPS,
    )
    found = stack.query("SELECT count(*) AS n FROM runs WHERE id = ANY(%s)", _uuids(ids))
    if found[0]["n"] != len(ids):
        rows.append({"id": None, "status": f"{len(ids) - found[0]['n']} accepted and not there"})
    return tuple(rows)


def _effects(stack: Stack) -> collections.Counter[str]:
    lines = stack.effects.read_text().splitlines() if stack.effects.exists() else []
    return collections.Counter(lines)


def _doubled(stack: Stack) -> tuple[str, ...]:
    twice = [line for line, times in _effects(stack).items() if times > 1]
    steps = stack.query(
        "SELECT run_id, step FROM events WHERE type = 'step.completed' "
        "GROUP BY 1, 2 HAVING count(*) > 1"
    )
    gaps = stack.query(
        "SELECT run_id FROM events GROUP BY 1 HAVING max(seq) <> count(*) OR min(seq) <> 1"
    )
    extra = stack.query(
        "SELECT count(*) - count(DISTINCT input) AS n FROM runs WHERE agent_name = 'mover'"
    )
    twice += [f"step {row['step']} of {row['run_id']}" for row in steps]
    twice += [f"a gap in the events of {row['run_id']}" for row in gaps]
    return tuple(twice + [f"{row['n']} runs made twice" for row in extra if row["n"]])


def report(outcome: Outcome) -> str:
    """Write the outcome for people."""
    ends = ", ".join(f"{name} {s:.1f} s" for name, s in outcome.ended_s.items())
    lines = [
        f"from {outcome.old} to the working tree, in {outcome.took_s:.0f} s",
        f"runs accepted {outcome.accepted}, connections tried again {outcome.retried}, "
        f"told to try again {outcome.told_to_wait}",
        f"refused {len(outcome.refused)}, lost {len(outcome.lost)}, twice {len(outcome.doubled)}, "
        f"effects missing {outcome.missing}",
        f"given back to a newer version {outcome.given_back}",
        f"from SIGTERM to the end: {ends}",
        *map(str, (*outcome.refused[:5], *outcome.lost[:5], *outcome.doubled[:5])),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run from the command line."""
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m tests.deploy.rehearsal", description=__doc__)
    parser.add_argument(
        "--old", help="the revision to come from (default: one with an older schema)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harness-old-", dir="/var/tmp") as folder:
        outcome = rehearse(args.old or older_version(), Path(folder))
    sys.stdout.write(report(outcome) + "\n")
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
