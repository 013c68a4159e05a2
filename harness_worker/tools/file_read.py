"""`file_read`: a part of a text file below `settings.tool.file_root`."""

from __future__ import annotations

import io
import os
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.paths import open_file, require_root
from harness_worker.tools.text import decode_part

_NAME = "file_read"
_DEFAULT_BYTES = 64 * 1024
_MAX_BYTES = 256 * 1024
_MAX_SCAN_BYTES = 64 * 1024 * 1024
"""How far a line range is searched for; a byte range reaches further."""
_SNIFF_BYTES = 8_192


def build(settings: Settings) -> list[Tool]:
    """Build the tool over the folder of the settings."""
    root = settings.tool.file_root

    @tool(effect="read", permission_tags=["files"], reads_private=True)
    def file_read(
        path: Annotated[
            str, Field(min_length=1, description="Relative path, such as docs/README.md.")
        ],
        start_line: Annotated[
            int | None, Field(ge=1, description="First line to read, counted from 1.")
        ] = None,
        end_line: Annotated[
            int | None, Field(ge=1, description="Last line to read, included.")
        ] = None,
        offset: Annotated[
            int | None, Field(ge=0, description="First byte to read, counted from 0.")
        ] = None,
        max_bytes: Annotated[
            int, Field(ge=1, le=_MAX_BYTES, description="The most bytes to return.")
        ] = _DEFAULT_BYTES,
    ) -> Json:
        """Read a text file, or a part of it, from the folder the operator has opened to tools.

        Use it to look at a file whose path you know; find paths with file_list, query tables with
        sql_query. Give either a line range (start_line, end_line) or a byte offset, or neither for
        the beginning.

        Returns {path, size_bytes, text, truncated} and, for lines, start_line, end_line and
        next_line; for bytes, offset and next_offset. When truncated is true, call again from
        next_line or next_offset.
        Limits: 64 KiB of text in one call unless max_bytes says otherwise, 256 KiB at most; UTF-8
        text only (bytes that are not UTF-8 become U+FFFD); lines beyond the first 64 MiB need an
        offset. Links that leave the folder are refused.
        """
        by_line = start_line is not None or end_line is not None
        if by_line and offset is not None:
            raise Invalid(
                f"Tool {_NAME!r} got both lines and an offset. "
                "Give start_line and end_line, or offset, not both.",
                code="ARGUMENTS_INVALID",
                tool=_NAME,
            )
        first = start_line or 1
        if end_line is not None and end_line < first:
            raise Invalid(
                f"Tool {_NAME!r}: end_line {end_line} is before start_line {first}. Swap them.",
                code="ARGUMENTS_INVALID",
                tool=_NAME,
            )
        with open_file(_NAME, require_root(_NAME, root), path) as fd:
            size = os.fstat(fd).st_size
            _refuse_binary(fd, path, size)
            about = {"path": path, "size_bytes": size}
            if by_line:
                return about | _read_lines(fd, first, end_line, max_bytes)
            return about | _read_bytes(fd, size, offset or 0, max_bytes)

    return [file_read]


def _refuse_binary(fd: int, path: str, size: int) -> None:
    if b"\0" in os.pread(fd, _SNIFF_BYTES, 0):
        raise Permanent(
            f"Tool {_NAME!r}: {path!r} ({size} bytes) is binary, not text. "
            "Choose a text file, or a tool made for this format.",
            code="NOT_TEXT",
            tool=_NAME,
        )


def _read_bytes(fd: int, size: int, offset: int, max_bytes: int) -> dict[str, Json]:
    data = os.pread(fd, max_bytes, offset)
    text, covered = decode_part(data, last=offset + len(data) >= size)
    end = offset + covered
    truncated = end < size
    out: dict[str, Json] = {"offset": offset, "text": text, "truncated": truncated}
    return out | ({"next_offset": end} if truncated else {})


def _read_lines(fd: int, first: int, last: int | None, max_bytes: int) -> dict[str, Json]:
    kept: list[bytes] = []
    kept_bytes = scanned_bytes = number = 0
    truncated = False
    with io.FileIO(fd, closefd=False) as raw, io.BufferedReader(raw, 1 << 16) as lines:
        # A line longer than what is left to return is read in part only, so memory stays bounded.
        while last is None or number < last:
            line = lines.readline(_MAX_BYTES + 1)
            if not line:
                break
            whole = line
            while not whole.endswith(b"\n") and (whole := lines.readline(1 << 16)):
                scanned_bytes += len(whole)
                if scanned_bytes > _MAX_SCAN_BYTES:
                    break
            scanned_bytes += len(line)
            number += 1
            if scanned_bytes > _MAX_SCAN_BYTES:
                raise _too_far(first)
            if number < first:
                continue
            room = max_bytes - kept_bytes
            if len(line) > room:
                truncated = True
                if not kept:
                    kept.append(line[:room])
                else:
                    number -= 1
                break
            kept.append(line)
            kept_bytes += len(line)
    if not kept and first > max(number, 1):
        raise Invalid(
            f"Tool {_NAME!r}: the file has {number} lines, start_line is {first}. "
            "Ask for a line that exists.",
            code="ARGUMENTS_INVALID",
            tool=_NAME,
        )
    out: dict[str, Json] = {
        "start_line": first,
        "end_line": number,
        "text": b"".join(kept).decode("utf-8", errors="replace"),
        "truncated": truncated,
    }
    return out | ({"next_line": number + 1} if truncated else {})


def _too_far(first: int) -> Permanent:
    return Permanent(
        f"Tool {_NAME!r}: line {first} lies beyond the first {_MAX_SCAN_BYTES >> 20} MiB. "
        "Read by offset and max_bytes instead.",
        code="FILE_TOO_LARGE",
        tool=_NAME,
    )
