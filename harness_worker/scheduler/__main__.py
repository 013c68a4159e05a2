"""`python -m harness_worker.scheduler`: run a scheduler in the foreground until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from harness_common.broker.app import app
from harness_common.broker.publish import Bell
from harness_common.interpreter import tune
from harness_common.settings import settings
from harness_common.telemetry.logs import configure_logging
from harness_common.telemetry.start import start_traces
from harness_common.telemetry.traces import traces
from harness_worker.scheduler import metrics
from harness_worker.scheduler.service import Scheduler


async def _main() -> None:
    scheduler = Scheduler(settings())
    start_traces(
        settings().telemetry,
        "harness-scheduler",
        scheduler.name,
        lambda outcome, n: metrics.spans.labels(outcome).inc(n),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, scheduler.stop)
    try:
        await scheduler.run(Bell(app))
    finally:
        await asyncio.to_thread(traces.stop)


def main() -> int:
    """Run until told to stop."""
    configure_logging(settings().log)
    tune()
    uvloop.run(_main())
    return 0


if __name__ == "__main__":
    sys.exit(main())
