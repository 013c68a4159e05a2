"""Awaiting from the middle of synchronous code: Celery calls the body of a task as a function.

The synchronous part runs in a greenlet; `wait_for` hands an awaitable to the coroutine around it
and gets its value back. SQLAlchemy
has such a bridge too; this one spares every worker process the 12 MB of loading it.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")


async def in_greenlet(function: Callable[..., T], *args: Any) -> T:
    """Run a synchronous function that may call `wait_for`; returns its value or raises what it
    raised.
    """
    inner = greenlet(function)
    inner.gr_context = contextvars.copy_context()
    out: Any = inner.switch(*args)
    while not inner.dead:
        try:
            value = await out
        except BaseException:  # noqa: BLE001 - it is raised again where `wait_for` was called
            out = inner.throw(*sys.exc_info())
        else:
            out = inner.switch(value)
    result: T = out
    return result


def wait_for(awaitable: Awaitable[T]) -> T:
    """Await from inside `in_greenlet`; raises `RuntimeError` elsewhere."""
    parent = getcurrent().parent
    if parent is None:
        raise RuntimeError("wait_for works only below in_greenlet")
    value: T = parent.switch(awaitable)
    return value
