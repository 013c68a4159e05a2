"""MCP servers that are commands: which may be started, in which environment, what they complain.

A server runs below `launcher`, in a session of its own, and sees nothing of the worker's
environment but the search path and what its declaration gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from mcp.client._transport import TransportStreams
from mcp.client.stdio import StdioServerParameters, stdio_client

from harness_common.core.errors import Denied
from harness_common.core.mcp import command_allowed
from harness_common.redaction import MARK
from harness_worker.egress.redact import CallSecrets
from harness_worker.mcp.faults import Unavailable

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_TAIL_BYTES: Final = 4_096
_HIDDEN: Final = ("LOGNAME", "SHELL", "TERM", "USER")


def check_allowed(program: str, allowed: Sequence[str]) -> None:
    """Raise `Denied` unless the operator lets tenants start this program."""
    if command_allowed(program, allowed):
        return
    known = ", ".join(allowed) or "none"
    raise Denied(
        f"this installation does not start {program!r} as an MCP server; allowed: {known}. "
        "The operator allows programs with HARNESS_MCP__COMMANDS; servers by --url need none.",
        code="MCP_COMMAND_DENIED",
        field="command",
        value=program,
    )


class Complaints:
    """The end of what a server writes to its standard error, without the secrets it was given."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = CallSecrets(secrets)
        self._short = [secret for secret in secrets if secret]  # these are no words of a sentence
        self._tail = b""

    def add(self, data: bytes) -> None:
        """Take more of it."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        """Return its last lines."""
        text = self._secrets.text(self._tail.decode(errors="replace"))
        for secret in self._short:
            text = text.replace(secret, MARK)
        return text.strip()[-1_000:]


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    env: Mapping[str, str],
    home: Path,
    max_bytes: int,
    complaints: Complaints,
) -> AsyncIterator[TransportStreams]:
    """Start a server; at the end it is gone, with everything it has started."""
    program = shutil.which(command[0], path=env.get("PATH", os.environ.get("PATH")))
    if program is None:
        raise Unavailable(f"there is no program {command[0]!r} on this worker")
    given = {"HOME": str(home), **dict.fromkeys(_HIDDEN, ""), **env}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(_LAUNCHER), str(max_bytes), "--", program, *command[1:]],
        env=given,
        cwd=home,
        encoding_error_handler="replace",
    )
    async with _errlog(complaints) as errlog, stdio_client(server, errlog) as streams:
        yield streams


@contextlib.asynccontextmanager
async def _errlog(complaints: Complaints) -> AsyncIterator[TextIO]:
    """Give a file to write complaints to; they are read as they come."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(reader, 65_536):
                complaints.add(data)
            else:
                loop.remove_reader(reader)

    loop.add_reader(reader, read)
    try:
        with os.fdopen(writer, "w") as file:
            yield file
            read()
    finally:
        loop.remove_reader(reader)
        os.close(reader)
