import asyncio
import sys
import threading
import time

import pytest
import uvloop

from harness_worker.tools.threads import ToolThreads


def test_stop_iteration_hangs():
    """A sync tool that does next(iter([])) never returns: set_exception(StopIteration) raises TypeError in `settle`."""

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda *a: None)
        async with asyncio.timeout(1.5):
            await ToolThreads().run(lambda: next(iter([])))

    with pytest.raises(BaseException) as e:
        asyncio.run(main())
    assert not isinstance(e.value, TimeoutError), (
        "hung until the timeout: the tool's own error was lost"
    )


def test_system_exit_kills_the_loop():
    """A tool that calls sys.exit (argparse does) ends the worker's loop thread; the process stays."""
    from harness_worker.pool import TaskPool

    pool = TaskPool.__new__(TaskPool)
    loop = uvloop.new_event_loop()
    pool.loop = loop
    th = threading.Thread(target=pool._run, daemon=True)
    th.start()

    async def answer():
        async def step():
            return await ToolThreads().run(lambda: sys.exit(2))

        try:
            return await asyncio.ensure_future(step())
        except Exception:
            return "caught"

    asyncio.run_coroutine_threadsafe(answer(), loop)
    time.sleep(0.5)
    assert th.is_alive(), "the event loop thread is dead; nothing restarts it"
