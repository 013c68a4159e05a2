"""A worker process as its supervisor sees it: started, looked at, reported when it ends.

`__main__` keeps N of them for the queues, `quarantine` one for suspects.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import structlog

from harness_common.coord.channel import nudge_channel
from harness_common.coord.redis import RedisFault
from harness_common.embedded.process import spawn
from harness_common.redis_url import sync_client
from harness_common.settings import Settings
from harness_common.store.postgres import sql

log = structlog.get_logger()

_QUICK_S = 5.0
KILL_AFTER_S = 90.0
"""How long after its grace a process that was told to stop may go on before it is killed."""


@dataclass(slots=True)
class WorkerProcess:
    """One life of a worker process, and how often it ended soon after its start before."""

    label: str
    incarnation: UUID
    process: subprocess.Popen[bytes]
    started: float
    quick_ends: int = 0
    restart_at: float | None = None
    """When another may be started in its place; None while this one runs."""

    def ended(self, longest_pause_s: float) -> int | None:
        """Return the exit code once, when the process has ended; decides when to start another."""
        code = self.process.poll()
        if code is None or self.restart_at is not None:
            return None
        now = time.monotonic()
        quick = now - self.started < _QUICK_S
        self.quick_ends = self.quick_ends + 1 if quick else 0
        pause_s = min(longest_pause_s, 0.5 * 2**self.quick_ends) if quick else 0.0
        self.restart_at = now + pause_s
        log.warning(
            "worker.ended",
            process=self.label,
            pid=self.process.pid,
            code=code,
            again_in_s=pause_s,
        )
        return code


def start_process(
    label: str,
    environment: Mapping[str, str],
    *,
    quick_ends: int = 0,
    death_signal: int = signal.SIGKILL,
) -> WorkerProcess:
    """Start a worker process under a fresh incarnation; it gets `death_signal` when we die."""
    incarnation = uuid4()
    name = f"{label}-{incarnation.hex[:6]}"
    process = spawn(
        [sys.executable, "-m", "harness_worker.child"],
        death_signal=death_signal,
        env={
            **os.environ,
            **environment,
            "HARNESS_INCARNATION": incarnation.hex,
            "HARNESS_WORKER_NAME": name,
        },
    )
    log.info("worker.spawned", process=label, pid=process.pid, name=name)
    return WorkerProcess(label, incarnation, process, time.monotonic(), quick_ends)


def report_death(config: Settings, worker: UUID, code: int) -> threading.Thread:
    """Tell Postgres, from a thread, which incarnation died. Best effort: a silent heartbeat says
    the same a lease later.
    """
    thread = threading.Thread(target=_report, args=(config, worker, code), daemon=True)
    thread.start()
    return thread


def _report(config: Settings, worker: UUID, code: int) -> None:
    why = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    params = {
        "worker": worker,
        "why": why,
        "only_if_silent": False,
        "looked_at": None,
        "silent_s": 0.0,
        "term": None,
    }
    try:
        with psycopg.connect(
            config.database_login("system"), connect_timeout=5, autocommit=True
        ) as conn:
            conn.execute(sql("worker_died"), params)
        with sync_client(config.require_redis_url(), timeout_s=1.0) as redis:
            redis.publish(nudge_channel(config.redis.prefix), b"{}")
    except (psycopg.Error, *RedisFault) as error:
        log.warning("worker.death_not_reported", error=str(error))
