"""Worker processes: their slots, versions and signs of life, and the runs that one works on now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.routes import tenant
from harness_api.routes.ids import WorkerId
from harness_api.schemas.tenant import WorkerView
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode

router = new_pages("/console/workers")

CanRead = Annotated[Visit, requires_page("workers:read")]
SILENT_S = 15.0
"""A live process says so every few seconds."""
_RUNS = 200


def state_of(worker: WorkerView, now: datetime) -> str:
    """Name the state of a process for people."""
    if worker.died_at is not None:
        return "dead"
    if worker.stopping_at is not None:
        return "stopping"
    return "silent" if (now - worker.seen_at).total_seconds() > SILENT_S else "alive"


@router.get("")
async def workers_page(services: Use, visit: CanRead) -> Response:
    """List worker processes, those that died within the hour included."""
    found = (await tenant.get_workers(services, visit.caller)).data
    now = datetime.now(UTC)
    states = {worker.incarnation: state_of(worker, now) for worker in found}
    alive = [worker for worker in found if states[worker.incarnation] in {"alive", "stopping"}]
    return visit.page(
        "workers.html",
        workers=found,
        states=states,
        alive=len(alive),
        held=sum(worker.held for worker in alive),
        slots=sum(worker.concurrency for worker in alive),
        versions=sorted({worker.version for worker in alive if worker.version}),
    )


@router.get("/{worker_id}")
async def worker_page(worker_id: WorkerId, services: Use, visit: CanRead) -> Response:
    """Show a process and the tenant's runs that it works on."""
    shown = encode("worker", worker_id)
    found = (await tenant.get_workers(services, visit.caller)).data
    worker = next((worker for worker in found if worker.incarnation == shown), None)
    if worker is None:
        raise NotFound(f"no worker {shown}", field="worker_id", value=shown)
    held = await tenant.get_worker_runs(worker_id, services, visit.caller, limit=_RUNS)
    return visit.page(
        "worker.html", worker=worker, state=state_of(worker, datetime.now(UTC)), runs=held.data
    )
