"""Cancels that are not lost on the way.

`asyncio.wait_for` of Python 3.11 drops a cancel that comes as what it waits for ends (mended in
3.12). The clients of Redis and Postgres wait with it: a run's cancel, or the end of a process,
would now and then find a task that goes on as if nothing had been asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancel_kept() -> Iterator[None]:
    """Raise `CancelledError` at the end of the block if the task was cancelled in it, and the block
    ended as if it had not been, or with the error that the cancel made (Postgres says that the
    statement was cancelled).
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except Exception as error:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
