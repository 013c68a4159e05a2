"""What a person is shown of a call before it is made: the tool's own preview, or its arguments.

A tool offers one as `meta={"preview": fn}`: `fn(arguments) -> str`, sync or async, without effects;
a diff, a letter as it would be sent. One that fails or takes too long never stops the question.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Final

import structlog

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_common.store.json_codec import storable_text
from harness_worker.tools.threads import ToolThreads

log = structlog.get_logger()

_LIMIT_S: Final = 5.0
_MAX_CHARS: Final = 20_000


async def preview_of(tool: Tool, arguments: Json, threads: ToolThreads) -> dict[str, Json]:
    """Return `kind` (`tool` or `arguments`) and `text`, at most 20,000 characters."""
    preview = tool.meta.get("preview")
    if preview is None:
        return _shown("arguments", json.dumps(arguments, indent=2, ensure_ascii=False))
    try:
        async with asyncio.timeout(_LIMIT_S):
            if inspect.iscoroutinefunction(preview):
                text = await preview(arguments)
            else:
                text = await threads.run(lambda: preview(arguments))
        return _shown("tool", str(text))
    except Exception as error:  # noqa: BLE001 - a preview is a help, never a condition
        log.warning("preview.failed", tool=tool.spec.name, error=repr(error)[:200])
        shown = _shown("arguments", json.dumps(arguments, indent=2, ensure_ascii=False))
        return shown | {"failed": type(error).__name__}


def _shown(kind: str, text: str) -> dict[str, Json]:
    text = storable_text(text)
    if len(text) > _MAX_CHARS:
        cut = len(text) - _MAX_CHARS
        text = f"{text[:_MAX_CHARS]}\n[{cut} more characters are not shown]"
    return {"kind": kind, "text": text}
