"""Estimate tokens offline, for budgets before a call and for providers that report no usage.

The rule is four UTF-8 bytes to a token, plus a few tokens of framing. Against real tokenizers it is
some 10 to 25 % off: good enough to choose what fits and to bound a cost, never to bill. Nothing is
downloaded.
"""

from __future__ import annotations

from harness_common.contracts.model import ChatRequest
from harness_common.core.message import Message
from harness_common.core.tokens import (
    MESSAGE_TOKENS,
    block_bytes,
    bytes_to_tokens,
    json_bytes,
    text_bytes,
)


def request_tokens(request: ChatRequest) -> int:
    """Estimate the input tokens of a request: system text, messages and tool definitions."""
    size = text_bytes(request.system)
    for tool in request.tools:
        size += text_bytes(tool.name) + text_bytes(tool.description) + json_bytes(tool.input_schema)
    for message in request.messages:
        size += sum(map(block_bytes, message.content))
    framing = len(request.messages) + len(request.tools) + bool(request.system)
    return bytes_to_tokens(size) + framing * MESSAGE_TOKENS


def message_tokens(message: Message) -> int:
    """Estimate the tokens of what a model said."""
    return bytes_to_tokens(sum(map(block_bytes, message.content)))
