"""Tools that end the worker process which runs them: loaded by workers under test (`--tools`).

Each does so only while the file that `POISON` names exists: a test can take the poison away.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from harness_worker.sdk import ToolContext, tool


@tool(effect="read")
async def kill_process(ctx: ToolContext) -> str:
    """End the worker process as the kernel does when memory is out: kill -9, nothing is said."""
    del ctx
    if _poisonous():
        os.kill(os.getpid(), signal.SIGKILL)
    return "no poison"


@tool(effect="read")
def exit_hard(ctx: ToolContext) -> str:
    """End the worker process from a thread, as a library in C does that aborts."""
    del ctx
    if _poisonous():
        os._exit(134)
    return "no poison"


@tool(effect="read", timeout_s=1.0)
def kill_later(ctx: ToolContext, after_s: float = 6.0) -> str:
    """Outlive the timeout, then end the worker process."""
    del ctx
    time.sleep(after_s)
    if _poisonous():
        os.kill(os.getpid(), signal.SIGKILL)
    return "no poison"


def _poisonous() -> bool:
    return Path(os.environ["POISON"]).exists()
