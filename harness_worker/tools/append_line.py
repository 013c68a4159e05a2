"""`append_line`: a small, honest effect outside the database, which tests can count.

Each successful call is exactly one line on disk; nothing here hides a second one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool
from harness_common.core.errors import Denied, Invalid, Permanent, UnknownOutcome
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.paths import require_root

OUTBOX = "outbox"
"""The folder below `settings.tool.file_root` that the files are in."""

_NAME = "append_line"
_MAX_LINE_BYTES = 4_096
_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def build(settings: Settings) -> list[Tool]:
    """Build the tool over the folder of the settings."""
    root = settings.tool.file_root

    @tool(effect="write", permission_tags=["files", "write"])
    def append_line(
        file: Annotated[
            str, Field(pattern=_FILE_NAME, description="File name without a path, such as log.txt.")
        ],
        line: Annotated[str, Field(description="The text, without a line break.")],
    ) -> Json:
        """Append one line to a file in the outbox folder, and return once it is on disk.

        Use it to leave a note that somebody outside will read, such as an order or a log entry. The
        file is created when it does not exist. Calling it twice appends two lines: check before you
        repeat it.

        Returns {file, size_bytes}, the size after the line was added.
        Limits: one line of at most 4,096 bytes of UTF-8; lines cannot be changed or removed.
        """
        data = _line_bytes(line)
        size_bytes = _append(require_root(_NAME, root) / OUTBOX, file, data)
        return {"file": f"{OUTBOX}/{file}", "size_bytes": size_bytes}

    return [append_line]


def _line_bytes(line: str) -> bytes:
    # Everything that str.splitlines breaks at, so that a reader in any language counts one line.
    if len(line.splitlines()) > 1 or line != line.rstrip("\r\n"):
        raise _refused("the line has a line break; call it once for each line")
    try:
        data = line.encode() + b"\n"
    except UnicodeEncodeError:
        raise _refused("the line is not valid Unicode; leave out lone surrogates") from None
    if len(data) > _MAX_LINE_BYTES:
        raise _refused(f"the line has {len(data)} bytes, {_MAX_LINE_BYTES} are allowed; shorten it")
    return data


def _refused(cause: str) -> Invalid:
    return Invalid(f"Tool {_NAME!r} wrote nothing: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME)


def _append(outbox: Path, file: str, data: bytes) -> int:
    """Write `data` in one system call and flush it; returns the new size in bytes."""
    try:
        outbox.mkdir(exist_ok=True)
        folder = os.open(outbox, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = os.open(file, _FLAGS, 0o644, dir_fd=folder)
            try:
                return _append_to(fd, folder, file, data)
            finally:
                os.close(fd)
        finally:
            os.close(folder)
    except OSError as problem:
        raise Denied(
            f"Tool {_NAME!r} wrote nothing: {OUTBOX}/{file} cannot be opened ({problem.strerror}). "
            "Choose another file name.",
            code="E403",
            tool=_NAME,
        ) from problem


def _append_to(fd: int, folder: int, file: str, data: bytes) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise _refused(f"{OUTBOX}/{file} is not a regular file; choose another name")
    try:
        written = os.write(fd, data)
    except OSError as problem:
        raise Permanent(
            f"Tool {_NAME!r} wrote nothing to {OUTBOX}/{file}: {problem.strerror}. "
            "The operator must make room.",
            code="WRITE_FAILED",
            tool=_NAME,
        ) from problem
    # From here on the line may be on disk: a failure is not known to be "nothing happened".
    try:
        os.fsync(fd)
        os.fsync(folder)
    except OSError as problem:
        raise _unknown(file, str(problem.strerror)) from problem
    if written != len(data):
        raise _unknown(file, f"{written} of {len(data)} bytes were written")
    return os.fstat(fd).st_size


def _unknown(file: str, cause: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"Tool {_NAME!r} cannot say whether the line reached {OUTBOX}/{file}: {cause}. "
        "Look at the file before it is repeated.",
        tool=_NAME,
    )
