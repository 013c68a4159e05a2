"""(j) A million queued runs: what a round of admission takes, and what it costs in memory.

The rows are made by SQL; scheduler and workers are the real ones, the scheduler with a stopwatch.
While the backlog is worked off, tenants who wait for nothing send a single run now and then. The
first runs have steps of about half a second, as of quick models, which keep two processors busy;
those after them have empty steps, with which the workers take all that there is.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from uuid import UUID

import psutil
import psycopg
import redis

from benchmarks.backlog import fill
from benchmarks.load import Load, open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, median, percentile
from benchmarks.stack import BenchFailed, Lab, Proc, Stack
from harness_common.commands import StartRun, start_run
from harness_common.contracts.agent import AgentSpec
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant

TITLE: Final = "a million queued runs: admission, memory, newcomers"
TENANTS: Final = 10
_CONCURRENCY: Final = 25
_WORKERS: Final = 2
_STEP_S: Final = 0.5
_WARM_UP_S: Final = 5.0
"""In which processes that just began plan their statements."""
_PHASES: Final = ("half a second", "empty")
_ENV: Final = {
    "HARNESS_SCHEDULER__WORKER_FACTOR": "1",
    "HARNESS_SCHEDULER__MAX_RUNNING": "2000",
    "HARNESS_WORKER__CONCURRENCY": str(_CONCURRENCY),
}
_NO_MORE_WAITS: Final = (
    "SELECT NOT EXISTS (SELECT 1 FROM runs WHERE agent_name = 'waits' AND status = 'queued')"
)


@dataclass(slots=True)
class Samples:
    """What was seen from outside while it went on."""

    scheduler_mb: list[float] = field(default_factory=list)
    valkey_mb: list[float] = field(default_factory=list)
    doorbells: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of the scheduler meanwhile."""


def run(stack: Stack, options: Options) -> Outcome:
    count, seconds = (20_000, 6.0) if options.quick else (1_000_000, 60.0)
    with stack.lab("million", _ENV) as lab:
        return asyncio.run(_measure(lab, count, seconds))


async def _measure(lab: Lab, count: int, seconds: float) -> Outcome:
    rounds = lab.folder / "rounds"
    async with open_load(lab) as load:
        # Steps of different lengths, or all runs would end, and be let in, in the same instant.
        steps_s = [_STEP_S * (0.55 + 0.1 * n) for n in range(TENANTS)]
        tenants = [await _tenant(load, f"busy{n}", step_s) for n, step_s in enumerate(steps_s)]
        quiet = [await _tenant(load, f"quiet{n}", _STEP_S) for n in range(3)]
        begun = time.monotonic()
        waiting = int(1.1 * (seconds + _WARM_UP_S) * _CONCURRENCY * _WORKERS / _STEP_S) // TENANTS
        with psycopg.connect(lab.database_url, autocommit=True) as conn:
            for tenant_id in tenants:
                fill(conn, tenant_id, "waits", waiting)
            for tenant_id in tenants:
                fill(conn, tenant_id, "one", count // TENANTS - waiting)
            conn.execute("VACUUM (ANALYZE) runs")
        lab.say(f"{count:,} queued runs made in {time.monotonic() - begun:.0f} s")
        lab.start_workers(_WORKERS)
        env = {"BENCH_ROUNDS": str(rounds)}
        scheduler = lab.start("scheduler", "benchmarks.timed_scheduler", (), env)
        lab.wait("the first runs", "SELECT sum(running) >= 40 FROM tenant_slots")
        phases: list[Outcome] = []
        for name in _PHASES:
            await asyncio.sleep(_WARM_UP_S)
            phases.append(await _phase(load, scheduler, rounds, quiet, name, seconds))
            lab.wait("the end of the slow steps", _NO_MORE_WAITS, timeout_s=300)
        lab.check()
    return Outcome(
        [measure for one in phases for measure in one.measures],
        {"seconds": seconds} | dict(zip(_PHASES, (one.details for one in phases), strict=True)),
        [problem for one in phases for problem in one.problems],
    )


async def _phase(
    load: Load,
    scheduler: Proc,
    rounds: Path,
    quiet: list[UUID],
    name: str,
    seconds: float,
) -> Outcome:
    """Watch for `seconds` while newcomers come."""
    begun, done = time.time(), await _done(load)
    samples, stop = Samples(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(load.lab, scheduler, samples, stop))
    watcher.start()
    try:
        starts_ms = await _newcomers(load, quiet, seconds)
    finally:
        stop.set()
        watcher.join()
    took = _read(rounds, begun)
    per_s = (await _done(load) - done) / (time.time() - begun)
    most = max(samples.running)
    over = [f"{most} ran at once with too few places"] if most > _CONCURRENCY * _WORKERS else []
    details = {"rounds": len(took), "newcomers_ms": starts_ms}
    return Outcome(_measures(name, took, samples, starts_ms, per_s), details, over)


async def _done(load: Load) -> int:
    rows = await load.rows("SELECT count(*) AS n FROM runs WHERE status = 'succeeded'", ())
    return int(rows[0]["n"])


async def _tenant(load: Load, name: str, step_s: float) -> UUID:
    async with load.db.transaction() as conn:
        row = await ensure_tenant(conn, load.lab.settings, name, load.db.timeout_s)
    await put_agent(load.db, row["tenant_id"], "one", scripted(1), Actor("bench"))
    waits = AgentSpec(
        model="scripted/bench",
        model_options={"script": [{"text": "done", "delay_s": step_s}]},
    )
    await put_agent(load.db, row["tenant_id"], "waits", waits, Actor("bench"))
    return UUID(str(row["tenant_id"]))


async def _newcomers(load: Load, quiet: list[UUID], seconds: float) -> list[float]:
    """Send a single run of a tenant that runs nothing, twice a second; how long until it starts."""
    until = time.monotonic() + seconds
    ids: list[UUID] = []
    nudges = load.lab.stack.redis()
    while time.monotonic() < until:
        tenant_id = quiet[len(ids) % len(quiet)]
        started = await start_run(load.db, tenant_id, StartRun("one", "Go.", created_by="new"))
        if started.doorbell is not None:
            load.bell.ring(started.doorbell)
        else:
            await asyncio.to_thread(nudges.publish, "harness:scheduler:nudge", b"{}")
        ids.append(started.run_id)
        await asyncio.sleep(0.5)
    await asyncio.sleep(2.0)
    rows = await load.rows(
        "SELECT extract(epoch FROM c.started_at - r.created_at) * 1000 AS ms FROM runs r "
        "JOIN checkpoints c ON c.tenant_id = r.tenant_id AND c.run_id = r.id AND c.step = 1 "
        "WHERE r.id = ANY(%s)",
        (ids,),
    )
    if len(rows) != len(ids):
        raise BenchFailed(f"{len(rows)} of {len(ids)} newcomers' runs ended")
    return [float(row["ms"]) for row in rows]


def _watch(lab: Lab, scheduler: Proc, samples: Samples, stop: threading.Event) -> None:
    process = psutil.Process(scheduler.pid)
    before = sum(process.cpu_times()[:2])
    with lab.stack.redis() as client, psycopg.connect(lab.database_url, autocommit=True) as conn:
        while not stop.wait(0.1):
            samples.scheduler_mb.append(process.memory_info().rss / 1e6)
            info = client.info("memory")
            assert isinstance(info, dict)
            samples.valkey_mb.append(info["used_memory"] / 1e6)
            samples.doorbells.append(len(_rung(client)))
            row = conn.execute("SELECT sum(running)::int FROM tenant_slots").fetchone()
            samples.running.append(row[0] if row else 0)
            samples.cpu_s = sum(process.cpu_times()[:2]) - before


def _rung(client: redis.Redis) -> set[str]:
    """Name the runs that a doorbell in the broker is for; one that was rung again counts once."""
    ids = set()
    for key in client.scan_iter("harness:steps.*", _type="list"):
        for body in cast("list[bytes]", client.lrange(key, 0, -1)):
            ids.add(json.loads(body)["headers"]["id"].partition(".")[0])
    return ids


def _read(rounds: Path, since: float) -> list[float]:
    """Return what the rounds since a time took, in ms."""
    lines = [line.split() for line in rounds.read_text().splitlines()]
    return [float(ms) for at, ms, _ in lines if float(at) >= since]


def _measures(
    name: str, took: list[float], samples: Samples, starts_ms: list[float], per_s: float
) -> list[Measure]:
    """Return the figures of a phase; the bounds are those of steps that wait, as most do."""
    asked = name == _PHASES[0]
    third = max(1, len(samples.scheduler_mb) // 3)
    grew = median(samples.scheduler_mb[-third:]) - median(samples.scheduler_mb[:third])
    valkey = median(samples.valkey_mb[-third:]) - median(samples.valkey_mb[:third])
    places = _CONCURRENCY * _WORKERS
    most_ms = 50 if asked else None
    return [
        Measure(f"{name}: a round of admission, p50", percentile(took, 50), "ms"),
        Measure(f"{name}: a round of admission, p99", percentile(took, 99), "ms", most_ms, "most"),
        Measure(
            f"{name}: scheduler, CPU a round", samples.cpu_s * 1000 / max(1, len(took)), "ms"
        ),
        Measure(f"{name}: runs done", per_s, "runs/s"),
        Measure(
            f"{name}: runs with a doorbell in the broker, most",
            max(samples.doorbells), "", places, "most",
        ),
        Measure(f"{name}: scheduler, RSS", median(samples.scheduler_mb), "MB"),
        Measure(f"{name}: scheduler, RSS grew by", grew, "MB", 5, "most"),
        Measure(f"{name}: Valkey, used memory grew by", valkey, "MB", 5, "most"),
        Measure(f"{name}: a newcomer's run, accepted → first step, p50",
                percentile(starts_ms, 50), "ms"),
        Measure(f"{name}: a newcomer's run, accepted → first step, max", max(starts_ms), "ms"),
    ]  # fmt: skip
