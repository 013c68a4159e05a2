"""The bare loop: what the same steps cost with plain Celery and nothing around them. No lease, no
claim, no checkpoint, no recovery.

Prefork, one task per step, one INSERT each over the child's own connection, `apply_async` of the
next step. Started as `celery -A benchmarks.bare_loop worker`; the benchmark only names its tasks.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Final, LiteralString

import psycopg
from celery import Celery

TASK: Final = "bare.step"
TABLE: LiteralString = """
CREATE TABLE bare_steps (
    run int, step int, result text NOT NULL, started_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (run, step))
"""
_INSERT: LiteralString = (
    "INSERT INTO bare_steps (run, step, result, started_at) VALUES (%s, %s, %s, to_timestamp(%s))"
)


def make_app(broker_url: str) -> Celery:
    """Build an app with Celery's defaults but for what the platform turns off too."""
    app = Celery("bare", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        task_send_sent_event=False,
        broker_connection_retry_on_startup=True,
    )
    return app


app = make_app(os.environ.get("BARE_BROKER_URL", "memory://"))


@cache
def _connection() -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(os.environ["BARE_DATABASE_URL"], autocommit=True)


@app.task(name=TASK)  # type: ignore[untyped-decorator]
def step(run: int, number: int, last: int) -> None:
    """Do one step and send for the next."""
    started = time.time()
    _connection().execute(_INSERT, (run, number, "A short answer.", started))
    if number < last:
        step.apply_async((run, number + 1, last))
