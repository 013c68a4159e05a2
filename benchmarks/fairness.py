"""(i) Shares of time: two tenants with weights 3:1 and steps of 20 ms against 2 s, and a third that
sends a single run now and then.

Slot-seconds are the platform's own account; who runs how much is sampled beside it, from outside.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import psycopg

from benchmarks.backlog import fill
from benchmarks.load import Load, open_load
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.stack import BenchFailed, Lab, Stack
from harness_common.commands import StartRun, start_run
from harness_common.contracts.agent import AgentSpec
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.tenants import set_tenant_limits

TITLE: Final = "shares of time: weights 3:1, steps of 20 ms against 2 s"
_CONCURRENCY: Final = 8
_WORKERS: Final = 2
_ENV: Final = {
    "HARNESS_SCHEDULER__WORKER_FACTOR": "1",
    "HARNESS_SCHEDULER__MAX_RUNNING": "2000",
    "HARNESS_WORKER__CONCURRENCY": str(_CONCURRENCY),
}
_USED: Final = (
    "SELECT tenant_id, running, max_running, used_s + CASE WHEN turn_sum = 0 THEN 0 ELSE "
    "running * extract(epoch FROM clock_timestamp())::float8 - turn_sum END AS used_s "
    "FROM tenant_slots"
)


@dataclass(slots=True)
class Samples:
    """What was seen while it went on."""

    running: dict[UUID, list[int]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    total: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """Which of the two has the weight: the one of short steps, or of long ones."""

    name: str
    short_weight: float
    long_weight: float


CASES: Final = (Case("20 ms has 3", 3.0, 1.0), Case("2 s has 3", 1.0, 3.0))


def run(stack: Stack, options: Options) -> Outcome:
    seconds = 10.0 if options.quick else 60.0
    measures: list[Measure] = []
    details: dict[str, Any] = {"seconds": seconds, "places": _CONCURRENCY * _WORKERS}
    problems: list[str] = []
    for case in CASES:
        with stack.lab("fairness", _ENV) as lab:
            lab.start_scheduler()
            lab.start_workers(_WORKERS)
            got = asyncio.run(_measure(lab, case, seconds))
        measures += got.measures
        problems += got.problems
        details[case.name] = got.details
    return Outcome(measures, details, problems)


def _spec(steps: int, delay_s: float) -> AgentSpec:
    last = {"text": "done", "delay_s": delay_s}
    script: list[Any] = [{**last, "continue": True}] * (steps - 1) + [last]
    return AgentSpec(model="scripted/bench", max_turns=steps + 1, model_options={"script": script})


async def _tenant(load: Load, name: str, spec: AgentSpec, weight: float) -> UUID:
    async with load.db.transaction() as conn:
        row = await ensure_tenant(conn, load.lab.settings, name, load.db.timeout_s)
    tenant_id = UUID(str(row["tenant_id"]))
    await put_agent(load.db, tenant_id, "one", spec, Actor("bench"))
    await set_tenant_limits(load.db, tenant_id, {"weight": weight}, Actor("bench"))
    return tenant_id


async def _measure(lab: Lab, case: Case, seconds: float) -> Outcome:
    async with open_load(lab) as load:
        short = await _tenant(load, "short", _spec(10, 0.02), case.short_weight)
        long = await _tenant(load, "long", _spec(1, 2.0), case.long_weight)
        quiet = await _tenant(load, "quiet", _spec(1, 0.0), 1.0)
        idle_ms = await _newcomers(load, quiet, 8.0)
        with psycopg.connect(lab.database_url, autocommit=True) as conn:
            fill(conn, long, "one", int(20 * (seconds + 30)))
            fill(conn, short, "one", int(100 * (seconds + 30)))
        await _nudge(lab)
        await asyncio.sleep(10.0)
        before = await _used(load)
        samples, stop = Samples(), asyncio.Event()
        watching = asyncio.create_task(_watch(load, samples, stop))
        busy_ms = await _newcomers(load, quiet, seconds)
        after = await _used(load)
        stop.set()
        await watching
        lab.check()
    used = {t: after[t] - before[t] for t in (short, long)}
    return _outcome(case, used[short], used[long], samples, idle_ms, busy_ms, seconds)


async def _used(load: Load) -> dict[UUID, float]:
    return {row["tenant_id"]: row["used_s"] for row in await load.rows(_USED, ())}


async def _nudge(lab: Lab) -> None:
    with lab.stack.redis() as client:
        await asyncio.to_thread(client.publish, "harness:scheduler:nudge", b"{}")


async def _watch(load: Load, samples: Samples, stop: asyncio.Event) -> None:
    """Look at every tenant's slots some forty times a second."""
    places = _CONCURRENCY * _WORKERS
    while not stop.is_set():
        rows = await load.rows(_USED, ())
        for row in rows:
            samples.running.setdefault(row["tenant_id"], []).append(row["running"])
            if row["running"] > row["max_running"]:
                samples.over.append(f"{row['running']} of {row['max_running']}")
        samples.total.append(sum(row["running"] for row in rows))
        if samples.total[-1] > places:
            samples.over.append(f"{samples.total[-1]} of {places} over all tenants")
        await asyncio.sleep(0.02)


async def _newcomers(load: Load, tenant_id: UUID, seconds: float) -> list[float]:
    """Send a single run every second; return from acceptance to the end of its only step."""
    until, ids = time.monotonic() + seconds, []
    while time.monotonic() < until:
        started = await start_run(load.db, tenant_id, StartRun("one", "Go."))
        if started.doorbell is not None:
            load.bell.ring(started.doorbell)
        else:
            await _nudge(load.lab)
        ids.append(started.run_id)
        await asyncio.sleep(1.0)
    rows = await load.rows(
        "SELECT extract(epoch FROM c.started_at - r.created_at) * 1000 AS ms FROM runs r "
        "JOIN checkpoints c ON c.tenant_id = r.tenant_id AND c.run_id = r.id AND c.step = 1 "
        "WHERE r.id = ANY(%s)",
        (ids,),
    )
    if len(rows) < len(ids) - 1:
        raise BenchFailed(f"{len(rows)} of {len(ids)} newcomers' runs ended")
    return [float(row["ms"]) for row in rows]


def _outcome(
    case: Case,
    short_s: float,
    long_s: float,
    samples: Samples,
    idle_ms: list[float],
    busy_ms: list[float],
    seconds: float,
) -> Outcome:
    got = short_s / (short_s + long_s)
    want = case.short_weight / (case.short_weight + case.long_weight)
    places = _CONCURRENCY * _WORKERS
    name = case.name
    measures = [
        Measure(f"{name}: share of the 20-ms tenant", got, "", note=f"asked {want:g}"),
        Measure(f"{name}: off by", abs(got / want - 1) * 100, "%", 10, "most"),
        Measure(f"{name}: off by, of the 2-s tenant's share",
                abs((1 - got) / (1 - want) - 1) * 100, "%", 10, "most"),
        Measure(f"{name}: places in use", (short_s + long_s) / seconds / places * 100, "%"),
        Measure(f"{name}: newcomer starts, idle p50", percentile(idle_ms, 50), "ms"),
        Measure(f"{name}: newcomer starts, busy p50", percentile(busy_ms, 50), "ms"),
        Measure(f"{name}: newcomer starts, busy p95", percentile(busy_ms, 95), "ms"),
        Measure(f"{name}: newcomer starts, busy ÷ idle, p50",
                percentile(busy_ms, 50) / percentile(idle_ms, 50), "x", 2, "most"),
    ]  # fmt: skip
    details = {
        "slot_seconds": {"20 ms": short_s, "2 s": long_s},
        "samples": len(samples.total),
        "most_running": max(samples.total),
        "newcomers_ms": {"idle": idle_ms, "busy": busy_ms},
    }
    return Outcome(measures, details, samples.over[:5])
