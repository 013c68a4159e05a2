"""One worker process in the foreground: `python -m harness_worker.child`. Started by the supervisor
in `__main__`.
"""

from __future__ import annotations

import signal
import sys

from harness_common.broker.app import app
from harness_common.settings import settings
from harness_common.telemetry.logs import configure_logging
from harness_worker.pool import TaskPool
from harness_worker.tasks import process


def main() -> int:
    """Run until SIGTERM.

    Celery's worker is built here rather than through its command line, which would import every
    plugin (Flower among them) at each start.
    """
    config = settings()
    configure_logging(config.log)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    worker = app.Worker(
        hostname=f"{process.name}@%h",
        pool_cls=TaskPool,
        concurrency=config.worker.concurrency,
        queues=list(config.worker.queues),
        without_mingle=True,
        without_gossip=True,
        task_events=config.worker.task_events,
        loglevel="WARNING",
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


if __name__ == "__main__":
    sys.exit(main())
