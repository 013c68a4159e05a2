"""(b) Idle start latency: a run posted over HTTP to an idle stack, until its first step runs.

Accepted is `runs.created_at`, running is the `started_at` of the first checkpoint, which is the
time of the claim; both are Postgres time. The fsync of the accepting transaction is part of it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any, Final
from uuid import UUID

import httpx

from benchmarks.load import open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.stack import ROOT, BenchFailed, Lab, Stack
from harness_common.core.ids import decode

TITLE: Final = "idle start latency: POST /v1/runs to first step running"
_PAUSE_S: Final = 0.05
_WARM_UP: Final = 10


def run(stack: Stack, options: Options) -> Outcome:
    count = 20 if options.quick else 200
    with stack.lab("start") as lab:
        key = _bootstrap(lab)
        lab.start_scheduler()
        lab.start_workers(2)
        url = lab.start_api()
        return asyncio.run(_measure(lab, url, key, count))


def _bootstrap(lab: Lab) -> str:
    """Make the tenant and its admin key as a first start does."""
    argv = [sys.executable, "-m", "harness_common.store.bootstrap"]
    done = subprocess.run(
        argv, cwd=ROOT, env=lab.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchFailed(f"bootstrap failed: {done.stdout}{done.stderr}")
    return (lab.folder / "data" / "admin.key").read_text().strip()


async def _measure(lab: Lab, url: str, key: str, count: int) -> Outcome:
    async with open_load(lab) as load:
        await load.agent("one", scripted(1))
        sent = await asyncio.to_thread(_post_all, lab, url, key, count)
        rows = await load.rows(
            "SELECT r.id, r.created_at, r.status, c.started_at, e.at AS event_at "
            "FROM runs r LEFT JOIN checkpoints c ON c.run_id = r.id AND c.step = 1 "
            "LEFT JOIN events e ON e.run_id = r.id AND e.type = 'step.started' AND e.step = 1 "
            "WHERE r.id = ANY(%s)",
            ([run_id for run_id, _, _ in sent],),
        )
    return _outcome(sent, {row["id"]: row for row in rows})


def _post_all(lab: Lab, url: str, key: str, count: int) -> list[tuple[UUID, float, float]]:
    """Post runs one after another; returns id, seconds of the answer and when it was here."""
    sent = []
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
        for number in range(count + _WARM_UP):
            begun = time.perf_counter()
            answer = client.post("/v1/runs", json={"agent": "one", "input": "Go."})
            took_s, here = time.perf_counter() - begun, time.time()
            if answer.status_code != 202:
                raise BenchFailed(f"POST /v1/runs: {answer.status_code} {answer.text[:500]}")
            if number >= _WARM_UP:
                sent.append((decode("run", answer.json()["id"]), took_s, here))
            time.sleep(_PAUSE_S)
            if number % 50 == 49:
                lab.say(f"{number + 1} of {count + _WARM_UP} runs posted")
    return sent


def _outcome(sent: list[tuple[UUID, float, float]], rows: dict[UUID, dict[str, Any]]) -> Outcome:
    problems = [
        f"run {run_id} is {rows[run_id]['status']}"
        for run_id, _, _ in sent
        if rows[run_id]["status"] != "succeeded" or rows[run_id]["started_at"] is None
    ]
    if problems:
        return Outcome([], {}, problems)
    start_ms, event_ms, after_ms, http_ms = [], [], [], []
    for run_id, took_s, here in sent:
        row = rows[run_id]
        start_ms.append((row["started_at"] - row["created_at"]).total_seconds() * 1000)
        event_ms.append((row["event_at"] - row["created_at"]).total_seconds() * 1000)
        after_ms.append((row["started_at"].timestamp() - here) * 1000)
        http_ms.append(took_s * 1000)
    measures = [
        Measure("accepted → first step running, p50", percentile(start_ms, 50), "ms", 15, "most"),
        Measure("accepted → first step running, p99", percentile(start_ms, 99), "ms", 60, "most"),
        Measure(
            "answer 202 received → first step running, p50", percentile(after_ms, 50), "ms",
            note="below 0: the step ran before the answer was here",
        ),
        Measure("POST /v1/runs over HTTP, p50", percentile(http_ms, 50), "ms"),
        Measure("POST /v1/runs over HTTP, p99", percentile(http_ms, 99), "ms"),
    ]  # fmt: skip
    marks = (50, 90, 95, 99, 100)
    details = {
        "runs": len(sent),
        "start_ms": {f"p{q}": percentile(start_ms, q) for q in marks},
        "event_step_started_ms": {f"p{q}": percentile(event_ms, q) for q in marks},
        "after_answer_ms": {f"p{q}": percentile(after_ms, q) for q in marks},
        "http_ms": {f"p{q}": percentile(http_ms, q) for q in marks},
    }
    return Outcome(measures, details)
