"""Work whose size a user decides: done beside the event loop, a little of it at a time, so that the
requests of others are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_AT_ONCE: Final = 2
_THREADS: Final = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="aside")
T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Return what `work` returns; it takes its turn in one of a few threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
