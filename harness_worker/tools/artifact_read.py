"""`artifact_read`: a part of a stored artifact, such as a result that was too long to show."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool, ToolContext
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.message import Json
from harness_common.core.tokens import json_bytes
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.text import decode_part

_NAME = "artifact_read"
_DEFAULT_BYTES = 16 * 1024
_MAX_BYTES = 256 * 1024
_SNIFF_BYTES = 8_192
_FRAME_BYTES = 256
_LEAST_BYTES = 64


def build(settings: Settings) -> list[Tool]:
    """Build the tool: a part is never longer than a result may be shown."""
    room = settings.tool.inline_result_bytes - _FRAME_BYTES

    # Untrusted: an artifact may hold what a web page said, and nothing about it tells.
    @tool(effect="read", untrusted_output=True)
    async def artifact_read(
        ctx: ToolContext,
        artifact_id: Annotated[
            str,
            Field(pattern=r"^art_[A-Za-z0-9_-]{1,80}$", description="The id, such as art_01h…."),
        ],
        offset: Annotated[int, Field(ge=0, description="First byte, counted from 0.")] = 0,
        max_bytes: Annotated[
            int, Field(ge=1, le=_MAX_BYTES, description="The most bytes to return.")
        ] = _DEFAULT_BYTES,
    ) -> Json:
        """Read a part of a stored text artifact by its id.

        Use it when a result says that it was kept as an artifact and you need more of it than the
        summary shows. Read only the parts you need.

        Returns {artifact_id, size_bytes, offset, text, truncated} and, when truncated, next_offset
        to go on from.
        Limits: one call returns no more than a result may be shown (less than 16 KiB unless the
        server says otherwise), whatever max_bytes asks for; text only, artifacts of this tenant
        only.
        """
        data = await ctx.read_artifact(artifact_id)
        size = len(data)
        if b"\0" in data[:_SNIFF_BYTES]:
            raise Permanent(
                f"Tool {_NAME!r}: {artifact_id} ({size} bytes) is binary, not text. "
                "Refer to it by its id; it cannot be shown here.",
                code="NOT_TEXT",
                tool=_NAME,
            )
        if offset and offset >= size:
            raise Invalid(
                f"Tool {_NAME!r}: offset {offset} is past the end, {artifact_id} has {size} bytes. "
                "Choose a smaller offset.",
                code="ARGUMENTS_INVALID",
                tool=_NAME,
            )
        part = data[offset : offset + max_bytes]
        text, covered = decode_part(part, last=offset + len(part) >= size)
        while (written := json_bytes(text)) > room and covered > _LEAST_BYTES:
            part = part[: max(_LEAST_BYTES, covered * room // written - 1)]
            text, covered = decode_part(part, last=False)
        end = offset + covered
        truncated = end < size
        out: dict[str, Json] = {
            "artifact_id": artifact_id,
            "size_bytes": size,
            "offset": offset,
            "text": text,
            "truncated": truncated,
        }
        return out | ({"next_offset": end} if truncated else {})

    return [artifact_read]
