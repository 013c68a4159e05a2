"""Estimate tokens without a tokenizer, for budgets before a call: nothing is downloaded.

The rule is four UTF-8 bytes to a token, plus a few tokens of framing. Against real tokenizers it is
some 10 to 25 % off: good enough to choose what fits. Where a provider reports its own count,
`Calibration` learns by how much.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse

BYTES_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 4
"""Role and separators of one message or block of a tool."""

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_WEIGHT: Final = 0.5
_LEAST, _MOST = 0.25, 4.0


def text_bytes(text: str) -> int:
    """Return the UTF-8 length: a CJK character is about one token and three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def json_bytes(value: Json) -> int:
    """Return the length of a JSON value as it is sent."""
    return text_bytes(json_text(value))


def json_text(value: Json) -> str:
    """Write a JSON value compactly, whatever it is."""
    try:
        return _ENCODE(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def bytes_to_tokens(size_bytes: int) -> int:
    """Return how many tokens so many bytes are, rounded up."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text."""
    return bytes_to_tokens(text_bytes(text))


def block_bytes(block: Block) -> int:
    """Return what a block takes on the wire, without framing."""
    match block:
        case Text(text):
            return text_bytes(text)
        case ToolUse(_, name, value, raw):
            return text_bytes(name) + (json_bytes(value) if raw is None else text_bytes(raw))
        case ToolResult(_, content):
            return text_bytes(content)
    assert_never(block)


def message_tokens(message: Message) -> int:
    """Estimate the tokens of one message, with what a provider wants back with it unchanged."""
    size = sum(map(block_bytes, message.content))
    if message.extra is not None and message.role == "assistant":
        size += json_bytes(message.extra)
    return bytes_to_tokens(size) + MESSAGE_TOKENS


def messages_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of several messages."""
    return sum(map(message_tokens, messages))


@dataclass(slots=True)
class Calibration:
    """How much a model's own count differs from the estimate: reported ÷ estimated, by model.

    Kept per process; a model that was never asked counts as estimated.
    """

    ratios: dict[str, float] = field(default_factory=dict)

    def ratio(self, model: str) -> float:
        """Return the factor by which an estimate for this model is to be multiplied."""
        return self.ratios.get(model, 1.0)

    def learn(self, model: str, estimated: int, reported: int) -> None:
        """Take in one answer's reported input tokens; half of the difference at a time."""
        if estimated <= 0 or reported <= 0:
            return
        seen = min(_MOST, max(_LEAST, reported / estimated))
        before = self.ratios.get(model)
        self.ratios[model] = seen if before is None else before + _WEIGHT * (seen - before)
