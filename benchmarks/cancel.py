"""(f) Cancel: from the request to the end of a run that is queued, in a tool, in a model call; idle
and under load.

The time is from before `POST /v1/runs/{id}/cancel` is sent until `runs.finished_at`, both on this
machine's clock. The tool is a program with a grandchild that ignores SIGTERM; after the end no
process of it may be left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import psycopg
from psycopg.rows import dict_row

from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.stack import ROOT, BenchFailed, Lab, Stack

TITLE: Final = "cancel: request to end of run"
_BATCH: Final = 20
_BOUND_S: Final = {"queued": 1.0, "tool": 2.0, "model": 5.0}
_BUSY_RUNS: Final = 60
_SCRIPT: Final = """#!/bin/sh
sh -c 'trap "" TERM; echo $$ >> "$PIDS"; while :; do sleep 1; done' &
wait
"""


def run(stack: Stack, options: Options) -> Outcome:
    """Measure each situation, idle and under load."""
    count = 20 if options.quick else 200
    measures: list[Measure] = []
    details: dict[str, Any] = {}
    problems: list[str] = []
    with stack.lab("cancel") as lab:
        pids = _program(lab)
        key = _bootstrap(lab)
        lab.start_scheduler()
        lab.start_workers(2, {"HARNESS_TOOL__PROGRAMS": str(lab.folder / "programs.json")})
        with httpx.Client(
            base_url=lab.start_api(), headers={"Authorization": f"Bearer {key}"}, timeout=60
        ) as client:
            _agents(client)
            for load in ("idle", "loaded"):
                if load == "loaded":
                    _make_busy(lab, client)
                for where, bound_s in _BOUND_S.items():
                    times = _measure(lab, client, where, count)
                    lab.say(f"{where}, {load}: p99 {percentile(times, 99):.3f} s")
                    name = f"cancel of a run {_WORDS[where]}, {load}, p99"
                    measures.append(Measure(name, percentile(times, 99), "s", bound_s, "most"))
                    details[f"{where} {load}"] = {
                        f"p{q}": round(percentile(times, q), 4) for q in (50, 90, 99, 100)
                    }
        left = [pid for pid in _pids(pids) if psutil.pid_exists(pid)]
        if left:
            problems.append(f"{len(left)} grandchildren of cancelled tools are alive: {left[:5]}")
        details["grandchildren"] = {"started": len(_pids(pids)), "left": len(left)}
    return Outcome(measures, details, problems)


_WORDS: Final = {"queued": "that is queued", "tool": "in a tool", "model": "in a model call"}


def _program(lab: Lab) -> Path:
    """Declare the program of the tool; returns where its grandchildren leave their pids."""
    pids, script = lab.folder / "pids", lab.folder / "sleeper.sh"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    programs = {
        "sleeper": {
            "argv": ["/bin/sh", str(script)],
            "env": {"PIDS": str(pids)},
            "timeout_s": 600,
        }
    }
    (lab.folder / "programs.json").write_text(json.dumps(programs))
    return pids


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _bootstrap(lab: Lab) -> str:
    argv = [sys.executable, "-m", "harness_common.store.bootstrap"]
    subprocess.run(argv, cwd=ROOT, env=lab.environment(), check=True, capture_output=True)
    return (lab.folder / "data" / "admin.key").read_text().strip()


def _agents(client: httpx.Client) -> None:
    call = {"name": "run_program", "input": {"program": "sleeper", "args": []}}
    scripts: dict[str, tuple[list[Any], list[str]]] = {
        "queued": ([{"text": "done"}], []),
        "tool": ([{"text": "go", "tools": [call]}, {"text": "done"}], ["run_program"]),
        "model": ([{"text": "done", "delay_s": 300}], []),
        "busy": ([{"text": "on", "continue": True}], []),
    }
    for name, (script, tools) in scripts.items():
        spec = {
            "model": f"scripted/{name}",
            "tools": tools,
            "max_turns": 100_000,
            "model_options": {"script": script * (50_000 if name == "busy" else 1)},
        }
        answer = client.post("/v1/agents", json={"name": name, "spec": spec})
        if answer.status_code != 201:
            raise BenchFailed(f"POST /v1/agents: {answer.status_code} {answer.text[:300]}")


def _start(client: httpx.Client, agent: str) -> str:
    answer = client.post("/v1/runs", json={"agent": agent, "input": "Go."})
    if answer.status_code != 202:
        raise BenchFailed(f"POST /v1/runs: {answer.status_code} {answer.text[:300]}")
    return str(answer.json()["id"])


def _make_busy(lab: Lab, client: httpx.Client) -> None:
    """Keep both worker processes at their limit with runs that never stop stepping."""
    for _ in range(_BUSY_RUNS):
        _start(client, "busy")
    lab.wait(
        "the load",
        f"SELECT count(*) >= {_BUSY_RUNS} FROM runs WHERE agent_name = 'busy' AND step > 5",
    )


def _measure(lab: Lab, client: httpx.Client, where: str, count: int) -> list[float]:
    times: list[float] = []
    with psycopg.connect(lab.database_url, autocommit=True, row_factory=dict_row) as conn:
        if where == "queued":
            conn.execute("UPDATE tenant_slots SET max_running = 0")
        try:
            for _ in range(0, count, _BATCH):
                times += _measure_batch(lab, client, conn, where)
        finally:
            conn.execute("UPDATE tenant_slots SET max_running = 20000")
    return times


def _measure_batch(
    lab: Lab, client: httpx.Client, conn: psycopg.Connection[dict[str, Any]], where: str
) -> list[float]:
    runs = [_start(client, where) for _ in range(_BATCH)]
    ids = [uuid.UUID(hex=run.removeprefix("run_")) for run in runs]
    if where != "queued":
        step = 1 if where == "tool" else 0
        lab.wait_for(
            f"{where} steps under way",
            lambda: _count(conn, ids, f"claim_id IS NOT NULL AND step = {step}") == _BATCH,
        )
        if where == "tool":
            time.sleep(0.5)  # until the program runs and its grandchild ignores SIGTERM
    sent: dict[uuid.UUID, float] = {}
    for run, run_id in zip(runs, ids, strict=True):
        sent[run_id] = time.time()
        answer = client.post(f"/v1/runs/{run}/cancel", json={})
        if answer.status_code != 202:
            raise BenchFailed(f"cancel: {answer.status_code} {answer.text[:300]}")
    lab.wait_for(
        "the cancelled runs' end",
        lambda: _count(conn, ids, "status = 'cancelled'") == _BATCH,
    )
    rows = conn.execute("SELECT id, finished_at FROM runs WHERE id = ANY(%s)", (ids,)).fetchall()
    return [_seconds(row["finished_at"], sent[row["id"]]) for row in rows]


def _seconds(end: datetime, begin: float) -> float:
    return end.timestamp() - begin


def _count(conn: psycopg.Connection[dict[str, Any]], ids: list[uuid.UUID], what: str) -> int:
    query = f"SELECT count(*) AS n FROM runs WHERE id = ANY(%s) AND {what}"
    row = conn.execute(query.encode(), (ids,)).fetchone()
    return int(row["n"]) if row else 0
