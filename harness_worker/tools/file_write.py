"""`file_write`: a file of the run, kept as an artifact.

Nothing is written to the worker's disk: each caged call has an empty work folder of its own, and
artifacts are what goes from one call to the next.
"""

from __future__ import annotations

import mimetypes
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import NewArtifact, Tool, ToolOutput
from harness_common.core.errors import Denied, Invalid
from harness_common.settings import Settings
from harness_worker.sdk import tool

_NAME = "file_write"
_WORK = PurePosixPath("/work")
_MAX_BYTES = 4 * 1024 * 1024


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="idempotent", permission_tags=["files", "write"])
    async def file_write(
        path: Annotated[
            str,
            Field(min_length=1, max_length=200, description="Where in /work, such as data/a.csv."),
        ],
        text: Annotated[str, Field(description="The whole content.")],
    ) -> ToolOutput:
        """Write a text file into the run's work folder, which is kept as an artifact.

        Use it to hand text to a person, or to a later python_run or shell_run by its artifact id.
        Writing the same path again makes a new artifact; the older one stays.

        Returns {path, size_bytes} and the artifact's id.
        Limits: 4 MiB of UTF-8; paths below /work only.
        """
        inside = _inside(path)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise _refused("the text is not valid Unicode; leave out lone surrogates") from None
        if len(data) > _MAX_BYTES:
            raise _refused(f"it has {len(data)} bytes, {_MAX_BYTES} are allowed; split it")
        media_type = mimetypes.guess_type(inside)[0] or "text/plain"
        kept = NewArtifact(inside, media_type, data)
        return ToolOutput({"path": f"/work/{inside}", "size_bytes": len(data)}, (kept,))

    return [file_write]


def _inside(text: str) -> str:
    """Return a path relative to /work; raises `Denied` for one that leads elsewhere."""
    path = _WORK / text
    leaves = ".." in path.parts or not path.is_relative_to(_WORK) or path == _WORK
    if leaves or not text.isprintable() or "\\" in text:
        raise Denied(
            f"Tool {_NAME!r} wrote nothing: {text[:100]!r} is not a path below /work. "
            "Use one like report.txt or data/a.csv.",
            code="TOOL_EXECUTION_BLOCKED",
            tool=_NAME,
        )
    return str(path.relative_to(_WORK))


def _refused(cause: str) -> Invalid:
    return Invalid(f"Tool {_NAME!r} wrote nothing: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME)
