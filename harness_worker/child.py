"""One worker process in the foreground: `python -m harness_worker.child`. Started by the supervisor
in `__main__`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import warnings
from typing import Any

from celery.exceptions import SecurityWarning

from harness_common.broker.app import app
from harness_common.interpreter import tune
from harness_common.settings import Settings, settings
from harness_common.telemetry.logs import configure_logging
from harness_worker.pool import TaskPool
from harness_worker.tasks import process

_M_ARENA_MAX = -8


def make_worker(config: Settings) -> Any:  # noqa: ANN401 - Celery has no types
    """Build Celery's worker. It runs Celery's event loop, which sends task events in groups: sent
    one by one they cost sixteen times as much, more than the rest of a step.
    """
    return app.Worker(
        hostname=f"{process.name}@{platform.node()}",
        pool_cls=TaskPool,
        concurrency=config.worker.concurrency,
        queues=list(config.worker.queues),
        without_mingle=True,
        without_gossip=True,
        task_events=config.worker.task_events,
        loglevel="WARNING",
        quiet=True,
    )


def main() -> None:
    """Run until SIGTERM.

    Celery's worker is built here rather than through its command line, which would import every
    plugin (Flower among them) at each start.
    """
    config = settings()
    configure_logging(config.log)
    # Only JSON is accepted, so that running as root (in a container) is no danger of Celery's kind.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(config.worker.nice)
    if sys.platform == "linux":
        # Two heaps instead of eight a core: threads that come and go would each leave one half
        # full.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    worker = make_worker(config)
    tune()
    worker.start()
    # Everything is drained and closed: taking the interpreter apart would only cost seconds.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(worker.exitcode or 0))


if __name__ == "__main__":
    main()
