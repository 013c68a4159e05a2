"""Tools that end the worker process which runs them: loaded by workers under test (`--tools`)."""

from __future__ import annotations

import os
import signal
import time

from harness_worker.sdk import ToolContext, tool


@tool(effect="read")
async def kill_process(ctx: ToolContext) -> str:
    """End the worker process as the kernel does when memory is out: kill -9, nothing is said."""
    del ctx
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@tool(effect="read")
def exit_hard(ctx: ToolContext) -> str:
    """End the worker process from a thread, as a library in C does that aborts."""
    del ctx
    os._exit(134)


@tool(effect="read", timeout_s=1.0)
def kill_later(ctx: ToolContext, after_s: float = 6.0) -> str:
    """Outlive the timeout, then end the worker process."""
    del ctx
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"
