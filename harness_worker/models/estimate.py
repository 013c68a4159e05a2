"""Estimate tokens offline, for budgets before a call and for providers that report no usage.

The rule is four UTF-8 bytes to a token, plus a few tokens of framing. Against real tokenizers it is
some 10 to 25 % off: good enough to choose what fits and to bound a cost, never to bill. Nothing is
downloaded.
"""

from __future__ import annotations

from typing import Final, assert_never

import orjson

from harness_common.contracts.model import ChatRequest
from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse

BYTES_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 4
"""Role and separators of one message or block of a tool."""


def request_tokens(request: ChatRequest) -> int:
    """Estimate the input tokens of a request: system text, messages and tool definitions."""
    size = _size(request.system)
    for tool in request.tools:
        size += _size(tool.name) + _size(tool.description) + _json_size(tool.input_schema)
    for message in request.messages:
        size += sum(map(_block_size, message.content))
    framing = len(request.messages) + len(request.tools) + bool(request.system)
    return _tokens(size) + framing * MESSAGE_TOKENS


def message_tokens(message: Message) -> int:
    """Estimate the tokens of what a model said."""
    return _tokens(sum(map(_block_size, message.content)))


def _block_size(block: Block) -> int:
    match block:
        case Text(text):
            return _size(text)
        case ToolUse(_, name, value, raw):
            return _size(name) + (_json_size(value) if raw is None else _size(raw))
        case ToolResult(_, content):
            return _size(content)
    assert_never(block)


def _size(text: str) -> int:
    # Bytes, not characters: a CJK character is about one token and three bytes.
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _json_size(value: Json) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer beyond 64 bits, say: its Python form is as long
        return len(str(value))


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
