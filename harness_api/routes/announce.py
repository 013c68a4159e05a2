"""What follows a change that a request made: doorbells, nudges, signals. All may be lost; then it
costs seconds.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from fastapi import Request

from harness_api.deps import Services
from harness_common.commands import Asked, Started
from harness_common.core.run import Status

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_id_of(request: Request) -> str:
    """Return the caller's trace id (W3C Trace Context), empty without a valid one."""
    match = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return match[1] if match else ""


async def announce(services: Services, started: Started) -> None:
    """Let a run begin: ring for an admitted one, nudge the scheduler for a queued one."""
    for one in started.interrupted:
        await announce_cancel(services, one.run_id, one.asked)
    if started.steered:
        await announce_change(services, started.run_id, Asked(started.status))
        return
    if started.doorbell is not None:
        services.bell.ring(started.doorbell)
    elif started.status is Status.QUEUED:
        await services.channel.nudge()
    admitted = "yes" if started.doorbell is not None else "no"
    services.metrics.runs_accepted.labels(admitted).inc()


async def announce_change(services: Services, run_id: UUID, asked: Asked) -> None:
    """Tell the scheduler, which admits and wakes, and whoever watches the run."""
    if not asked.changed:
        return
    await services.channel.nudge()
    await services.channel.live(run_id, {"type": "committed", "status": str(asked.status)})


async def announce_cancel(services: Services, run_id: UUID, asked: Asked) -> None:
    """Tell also the process that works on the run. The scheduler stops the run's descendants."""
    if asked.claimed_by is not None:
        await services.channel.cancel(asked.claimed_by, run_id)
    await announce_change(services, run_id, asked)
