"""What a server's answer becomes: text for the model, artifacts for what is not text."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from typing import Any, Final

import mcp_types as types

from harness_common.contracts.tool import NewArtifact, ToolOutput
from harness_common.core.errors import Permanent

_MAX_ERROR: Final = 4_000
_MAX_PARTS: Final = 200
_NAME: Final = re.compile(r"[^a-zA-Z0-9_.-]+")


def output_of(result: types.CallToolResult, notes: list[str]) -> ToolOutput:
    """Return a result as a tool's output; `notes` are told to the model after it.

    Raises `Permanent` (`MCP_TOOL_ERROR`) with the server's words when it says that the call failed.
    """
    texts: list[str] = []
    artifacts: list[NewArtifact] = []
    for number, block in enumerate(result.content[:_MAX_PARTS]):
        _take(block, number, texts, artifacts)
    if len(result.content) > _MAX_PARTS:
        texts.append(f"[{len(result.content) - _MAX_PARTS} more parts were left out]")
    if result.structured_content is not None and not _is_said(texts, result.structured_content):
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join([*texts, *notes])
    if result.is_error:
        raise Permanent(text[:_MAX_ERROR] or "it gave no reason", code="MCP_TOOL_ERROR")
    return ToolOutput(text, tuple(artifacts))


def _take(block: Any, number: int, texts: list[str], artifacts: list[NewArtifact]) -> None:  # noqa: ANN401
    match block:
        case types.TextContent():
            texts.append(block.text)
        case types.ImageContent() | types.AudioContent():
            _keep(f"{block.type}-{number}", block.mime_type, block.data, texts, artifacts)
        case types.EmbeddedResource():
            resource = block.resource
            if isinstance(resource, types.TextResourceContents):
                texts.append(f"[resource {resource.uri}]\n{resource.text}")
            else:
                kind = resource.mime_type or "application/octet-stream"
                _keep(str(resource.uri), kind, resource.blob, texts, artifacts)
        case types.ResourceLink():
            about = f": {block.description}" if block.description else ""
            texts.append(f"[resource link {block.uri} ({block.name}){about}]")
        case _:
            texts.append(f"[a part of type {getattr(block, 'type', '?')!s:.50} was left out]")


def _keep(
    name: str, media_type: str, data: str, texts: list[str], artifacts: list[NewArtifact]
) -> None:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        texts.append(f"[{name!s:.100} was not valid base64 and was left out]")
        return
    plain = _NAME.sub("_", name.rsplit("/", 1)[-1])[:100] or "part"
    if "." not in plain:
        plain += mimetypes.guess_extension(media_type) or ""
    artifacts.append(NewArtifact(plain, media_type[:100], raw))


def _is_said(texts: list[str], structured: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether a text is the structured content already, as the protocol asks of servers."""
    for text in texts:
        try:
            if json.loads(text) == structured:
                return True
        except ValueError:
            continue
    return (
        isinstance(structured, dict)
        and list(structured) == ["result"]
        and ("\n".join(texts) == str(structured["result"]))
    )
