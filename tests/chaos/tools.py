"""Tools of the workload, loaded by the workers with `HARNESS_WORKER__TOOLS`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness_common.settings import settings
from harness_worker.sdk import ToolContext, tool
from harness_worker.tools.append_line import OUTBOX

EFFECTS = "effects.txt"
SLOW_S = 0.8


@tool(effect="read")
async def whoami(ctx: ToolContext) -> str:
    """Say which run this is, so that a line of text can name it."""
    return ctx.run_id


@tool(effect="write")
def slow_line(ctx: ToolContext, line: str) -> str:
    """Append one line to the file of effects, then take a while to answer.

    A process that dies in that while leaves an effect whose outcome is not known.
    """
    del ctx
    folder = Path(settings().tool.file_root or ".") / OUTBOX
    folder.mkdir(exist_ok=True)
    fd = os.open(folder / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    time.sleep(SLOW_S)
    return "appended"
