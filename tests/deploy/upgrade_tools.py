"""The tool of the rehearsal, loaded by workers of both versions; it imports what both have."""

from __future__ import annotations

import os
import time

from harness_worker.sdk import ToolContext, tool


@tool(effect="write")
def leave_line(ctx: ToolContext, n: int) -> str:
    """Leave a line in a file outside of everything, which is counted in the end."""
    path = os.environ["REHEARSAL_EFFECTS"]
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, f"{ctx.run_id} {n}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    time.sleep(0.2)
    return "left"
