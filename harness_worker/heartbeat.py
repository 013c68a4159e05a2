"""One batched heartbeat for all runs that a process holds, and the signals that reach it.

The heartbeat says "this process lives" in Postgres, renews (or sets again) its leases in Redis, and
hears in the answer which runs are to be cancelled and which claims the process does not know of: a
claim whose reply got lost is given back.
"""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import structlog

from harness_common.broker.publish import Doorbell
from harness_common.coord.redis import RedisFault
from harness_common.core.ids import encode
from harness_common.core.inputs import Released
from harness_common.core.rules import advance as advance_state
from harness_common.core.throttle import ENDS_AFTER_S
from harness_common.store import json_codec
from harness_common.store.apply import apply, read_run
from harness_common.store.connection import DatabaseUnavailable, Row
from harness_common.store.writes import Write
from harness_common.telemetry.alive import Alive
from harness_worker.runtime import Runtime, register
from harness_worker.telemetry import metrics
from harness_worker.throttles import from_json
from harness_worker.tools.announce import announce

log = structlog.get_logger()


async def beat(runtime: Runtime) -> None:
    """Send one heartbeat and act on its answer. Raises `DatabaseUnavailable`."""
    held = list(runtime.held.values())
    age_s, runtime.counters.queue_age_s = runtime.counters.queue_age_s, 0.0
    rows = await runtime.heart.fetch(
        "heartbeat",
        {
            "worker": runtime.worker,
            "held": len(held),
            "claims": [h.claim_id for h in held],
            "queue_age_s": age_s,
            "sandbox": _sandbox_told(runtime),
            "orphan_after_s": 2 * runtime.settings.worker.renew_s,
            "throttle_ends_after_s": ENDS_AFTER_S,
        },
    )
    metrics.held.set(len(held))
    lost = runtime.bell.lost - runtime.counters.doorbells_lost
    runtime.counters.doorbells_lost += lost
    metrics.doorbells_lost.inc(lost)
    own = [row for row in rows if row["run_id"] is None]
    if not own:
        # Pruned while we were cut off: announce ourselves again, or every claim would be an orphan.
        log.warning("worker.forgotten", worker=str(runtime.worker))
        await register(runtime.heart, runtime.settings, runtime.worker, runtime.name)
        await announce(runtime.heart, runtime.worker, runtime.catalog.local)
    for row in own:
        runtime.clock.set(row["now"])
        runtime.throttles.refresh(map(from_json, row["throttles"] or ()), row["now"])
        if row["condemned"]:
            log.warning("worker.condemned", worker=str(runtime.worker))
    for row in rows:
        if row["run_id"] is None:
            continue
        try:
            await _heed(runtime, row)
        except Exception:  # one run that cannot be read must not silence the heartbeat
            log.exception("claim.not_given_back", run_id=encode("run", row["run_id"]))


def _sandbox_told(runtime: Runtime) -> str | None:
    """Write which sandbox this process has; None until that is known."""
    found = runtime.sandbox.found if runtime.sandbox is not None else None
    if found is None:
        return None
    return json_codec.dumps_text({"tier": str(found.best), "why_not": dict(found.why_not)})


async def _heed(runtime: Runtime, row: Row) -> None:
    """Act on one claim that the heartbeat's answer named."""
    if row["cancel_requested"] and row["run_id"] in runtime.held:
        request_cancel(runtime, row["run_id"])
    elif row["run_id"] not in runtime.held:
        await give_back(runtime, row["tenant_id"], row["run_id"], row["claim_id"])


async def renew_leases(runtime: Runtime) -> None:
    """Extend the leases of held runs, and set again those that vanished (a Redis that forgot)."""
    held = [h for h in runtime.held.values() if h.leased]
    try:
        taken, vanished = await runtime.leases.renew((h.run_id, h.lease) for h in held)
        metrics.leases_taken_over.inc(len(taken))
        metrics.leases_vanished.inc(len(vanished))
        await asyncio.gather(*(_set_again(runtime, run_id) for run_id in vanished))
    except RedisFault as error:
        log.warning("lease.renewal_failed", error=str(error), held=len(held))
        return
    if taken:
        log.warning("lease.taken_over", count=len(taken), first=str(taken[0]))


async def _set_again(runtime: Runtime, run_id: UUID) -> None:
    holding = runtime.held.get(run_id)
    if holding is None or not holding.leased:
        return
    await runtime.leases.take(run_id, holding.lease)
    if runtime.held.get(run_id) is not holding:  # released meanwhile: leave nothing behind
        await runtime.leases.release(run_id, holding.lease)


def request_cancel(runtime: Runtime, run_id: UUID) -> None:
    """Tell the step of a run to stop, if this process holds it."""
    held = runtime.held.get(run_id)
    if held is not None and not held.cancel_requested:
        held.cancel()


async def give_back(runtime: Runtime, tenant_id: UUID, run_id: UUID, claim_id: UUID) -> None:
    """Release a claim that this process holds in Postgres but does not work on."""
    run = await read_run(runtime.db, tenant_id, run_id)
    if run is None or run.claim_id != claim_id or run_id in runtime.held:
        return
    now = runtime.clock.now()
    transition = advance_state(run.state, [Released("claim without a worker")], now)
    async with runtime.db.connection() as conn:
        (applied,) = await apply(
            conn, [Write(run, transition, now)], timeout_s=runtime.db.timeout_s
        )
    if applied is not None and applied.should_ring:
        runtime.bell.ring(
            Doorbell(
                tenant_id,
                run_id,
                run.version,
                run.bell_queue,
                run.priority,
                trace_id=run.trace_id,
                step=run.state.step + 1,
            )
        )
        log.info("claim.given_back", run_id=encode("run", run_id))


async def heartbeat_loop(runtime: Runtime) -> None:
    """Beat every `renew_s` until cancelled; survives the loss of either store."""
    alive = Alive(_place(runtime.name))
    while True:
        alive.beat()
        try:
            await beat(runtime)
        except DatabaseUnavailable as error:
            log.warning("heartbeat.failed", error=str(error))
        except Exception:
            log.exception("heartbeat.failed")
        await asyncio.sleep(runtime.settings.worker.renew_s * (0.9 + 0.2 * random.random()))


def _place(name: str) -> str | None:
    """Name the place of a process, which the next one in it takes over; None for a quarantine,
    which comes and goes.
    """
    place = name.rpartition("-")[0] or name
    return None if "quarantine" in place else place


async def lease_loop(runtime: Runtime) -> None:
    """Renew leases every `renew_s`; apart from the heartbeat, which must never wait for Redis."""
    while True:
        await asyncio.sleep(runtime.settings.worker.renew_s * (0.9 + 0.2 * random.random()))
        try:
            await renew_leases(runtime)
        except Exception:
            log.exception("lease.renewal_failed")


async def signal_loop(runtime: Runtime) -> None:
    """Listen for cancels, throttles and breakers over Redis; a lost cancel or throttle arrives with
    the next heartbeat, a breaker with the next fault.
    """
    while True:
        try:
            async with runtime.channel.worker_signals(runtime.worker) as signals:
                await runtime.throttles.look()  # what was told while nobody listened
                runtime.throttles.deaf = False
                await runtime.breakers.look()
                runtime.breakers.deaf = False
                async for signal in signals:
                    if "cancel" in signal:
                        request_cancel(runtime, UUID(hex=signal["cancel"]))
                    if "throttle" in signal:
                        runtime.throttles.heard(signal["throttle"])
                    if "breaker" in signal:
                        runtime.breakers.heard(signal["breaker"])
                    if "mcp_check" in signal and runtime.mcp is not None:
                        runtime.mcp.wish(*(UUID(hex=part) for part in signal["mcp_check"]))
        except (*RedisFault, DatabaseUnavailable) as error:
            log.info("signals.reconnecting", error=str(error))
        except Exception:
            log.exception("signals.failed")
        runtime.throttles.deaf = runtime.breakers.deaf = True
        await asyncio.sleep(0.2 + 0.8 * random.random())
