"""Synchronous tools that raise what a future or an event loop cannot carry."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
import uvloop

from harness_worker.tools.threads import ToolThreads


def test_a_stop_iteration_is_an_error_and_not_a_hang():
    """INV11: no future takes a StopIteration, so that the call would never return."""

    async def main():
        async with asyncio.timeout(1.5):
            await ToolThreads().run(lambda: next(iter([])))

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(main())


def test_a_system_exit_does_not_end_the_event_loop():
    """INV18: a tool that calls sys.exit (argparse does) would end the loop under all other runs."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)  # as the worker's pool has it
    thread.start()
    call = ToolThreads().run(lambda: sys.exit(2))
    with pytest.raises(RuntimeError, match="SystemExit"):
        asyncio.run_coroutine_threadsafe(call, loop).result(2.0)
    assert thread.is_alive()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(2.0)
    loop.close()


def test_an_exit_in_a_task_does_not_end_the_event_loop():
    """INV18: asyncio lets an exit of a task end the loop, and all other runs with it."""

    async def leaves():
        await asyncio.sleep(0)
        sys.exit(2)

    async def main():
        with pytest.raises(RuntimeError, match="SystemExit"):
            await ToolThreads().follow("leaves", leaves())

    asyncio.run(main())
