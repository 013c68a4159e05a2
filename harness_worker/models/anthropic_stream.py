"""Put an answer together from the events of a Messages stream. Pure: no I/O and no clock.

Used by `anthropic`. Text and tool calls become blocks of ours. Reasoning, and whatever else a
provider must get back as it came, becomes part of the message's `extra` (see `extra_of`).
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import orjson

from harness_common.contracts.model import Finish, Usage
from harness_common.core.message import Block, Json, Message, Text, ToolUse, Trust
from harness_worker.models.tool_args import parse_arguments

PROVIDER: Final = "anthropic"
MAX_BLOCKS: Final = 4096
REASONING: Final = frozenset({"thinking", "redacted_thinking"})
_REFUSED: Final = "The model declined to answer."
_FINISH: Final[dict[str, Finish]] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_GROWS: Final = {"text_delta": "text", "thinking_delta": "thinking"}
_COUNTS: Final = (
    "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
    "cache_creation", "output_tokens_details",
)  # fmt: skip


class _Part:
    """One content block: as it began, and the pieces that its text or arguments grow by."""

    __slots__ = ("block", "json", "pieces")

    def __init__(self, block: dict[str, Any]) -> None:
        self.block = block
        self.pieces: list[str] = []
        self.json: list[str] = []

    @property
    def kind(self) -> str:
        return str(self.block.get("type") or "")

    def text(self, key: str) -> str:
        return _plain(self.block.get(key)) + "".join(self.pieces)


class MessagesAnswer:
    """One answer in the making."""

    __slots__ = (
        "_parts", "_refusal", "_spoilt", "_stop", "_usage", "alive", "done", "id", "model", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.alive = False
        self.done = False
        self.id = ""
        self.model = ""
        self.size = 0
        self._parts: dict[int, _Part] = {}
        self._stop = ""
        self._refusal = ""
        self._spoilt = False
        """Reasoning holds what cannot be stored, so that it could not be sent back as it came."""
        self._usage: dict[str, Any] = {}

    @property
    def complete(self) -> bool:
        """Tell whether the server ended the answer; a stream that just stops was cut."""
        return self.done or bool(self._stop)

    def add(self, event: Json) -> str:
        """Take one event and return the text it adds for a reader; unknown ones add nothing.

        Raises `TypeError`, `AttributeError`, `LookupError` or `ValueError` for what is no event.
        """
        match event["type"]:
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "content_block_start":
                return self._begin(event["index"], event["content_block"])
            case "message_start":
                self._head(event["message"])
            case "message_delta":
                self._end(event["delta"])
                self._count(event.get("usage"))
            case "message_stop":
                self.done = True
            case _:  # ping, content_block_stop, and what later versions add
                pass
        return ""

    def add_whole(self, body: Json) -> str:
        """Take an answer that came in one piece."""
        if body["type"] != "message":
            raise ValueError(f"the answer is a {body['type']!r}, not a message")
        self._head(body)
        shown = [self._begin(index, block) for index, block in enumerate(body["content"])]
        self._end(body)
        self.alive = True
        return "".join(shown)

    def finish(self) -> Finish:
        """Say how the answer ended; `end_turn`, `stop_sequence` and unknown reasons are `stop`."""
        return _FINISH.get(self._stop, "stop")

    def usage(self) -> Usage | None:
        """Return the tokens that the server reported, or None.

        Total input is the sum of what was read anew, written to a cache and read from one.
        """
        read = _number(self._usage.get("cache_read_input_tokens"))
        written = _number(self._usage.get("cache_creation_input_tokens"))
        details = self._usage.get("cache_creation")
        long = details.get("ephemeral_1h_input_tokens") if isinstance(details, dict) else 0
        total = _number(self._usage.get("input_tokens")) + read + written
        if not total:
            return None
        return Usage(
            total,
            _number(self._usage.get("output_tokens")),
            read,
            cache_write_tokens=written,
            cache_write_1h_tokens=min(_number(long), written),
        )

    def message(self, *, model: str, prefix: str, keep_reasoning: bool) -> Message:
        """Return the answer as a message; every tool use has an id that is unique in it.

        `model` and `prefix` say what the `extra` belongs to (see `extra_of`).
        """
        content: list[Block] = []
        layout: list[Json] = []
        seen: set[str] = set()
        parts = [part for _, part in sorted(self._parts.items())]
        for part in parts:
            match part.kind:
                case "text":
                    if text := part.text("text"):
                        layout.append(len(content))
                        content.append(Text(text))
                case "tool_use" if self.finish() == "refusal":
                    pass  # broken off by who watches the model: nobody may act on what it began
                case "tool_use":
                    layout.append(len(content))
                    content.append(self._tool_use(part, seen, last=part is parts[-1]))
                case _:
                    layout.append(_as_it_came(part))
        if self.finish() == "refusal" and not any(isinstance(b, Text) for b in content):
            content.append(Text(self._refusal or _REFUSED))
        foreign = any(
            isinstance(item, dict) and item.get("type") not in REASONING for item in layout
        )
        if self._spoilt or not (keep_reasoning or _is_unreadable(layout)):
            layout = [i for i in layout if isinstance(i, int) or i.get("type") not in REASONING]
        extra = extra_of(model, prefix, layout, paused=self.finish() == "pause")
        # What a tool of the provider's brought back is from outside, like any tool's result.
        trust: Trust = "untrusted" if foreign else "trusted"
        return Message("assistant", tuple(content), trust, extra)

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def _head(self, message: dict[str, Any]) -> None:
        self.id, self.model = str(message.get("id") or ""), str(message.get("model") or "")
        self._count(message.get("usage"))

    def _end(self, delta: dict[str, Any]) -> None:
        if stop := delta.get("stop_reason"):
            self._stop = str(stop)
            self.alive = True
        details = delta.get("stop_details")
        if isinstance(details, dict):
            self._refusal = _plain(details.get("explanation"))

    def _count(self, usage: Json) -> None:
        # Cumulative: what comes later replaces what came before, and may leave things out.
        if isinstance(usage, dict):
            self._usage |= {k: usage[k] for k in _COUNTS if usage.get(k) is not None}

    def _begin(self, index: int, block: dict[str, Any]) -> str:
        if not isinstance(block["type"], str):
            raise TypeError("the type of a block is no text")
        if len(self._parts) >= MAX_BLOCKS:
            raise ValueError(f"more than {MAX_BLOCKS} blocks in one answer")
        self._parts[int(index)] = _Part(block)
        self.alive = True
        text = _plain(block.get("text")) if block["type"] == "text" else ""
        self.size += len(text)
        return text

    def _delta(self, index: int, delta: dict[str, Any]) -> str:
        part = self._parts[index]
        kind = delta["type"]
        if (key := _GROWS.get(kind)) is not None:
            piece = _plain(delta[key])
            self._spoilt |= kind == "thinking_delta" and piece != delta[key]
            part.pieces.append(piece)
            self.size += len(piece)
            return piece if kind == "text_delta" else ""
        if kind == "input_json_delta":
            piece = _plain(delta["partial_json"])
            part.json.append(piece)
            self.size += len(piece)
        elif kind == "signature_delta":
            part.block["signature"] = delta["signature"]
        return ""

    def _tool_use(self, part: _Part, seen: set[str], *, last: bool) -> ToolUse:
        use_id = str(part.block.get("id") or "").replace("\x00", "")
        if not use_id or use_id in seen:
            use_id = f"toolu_{uuid4().hex[:24]}"
        seen.add(use_id)
        name = str(part.block.get("name") or "").replace("\x00", "")
        text = "".join(part.json)
        if not text:
            given = part.block.get("input") or {}
            # Cut off before its first argument: a call without arguments it is not.
            text = "{" if last and self.finish() == "length" else orjson.dumps(given).decode()
        value, raw = parse_arguments(text)
        return ToolUse(use_id, name, value, raw)


def extra_of(model: str, prefix: str, layout: list[Json], *, paused: bool) -> Json:
    """Build a message's `extra`; None when there is nothing to send back.

    `layout` is the whole answer in its order: a number is that block of the message, an object is a
    block of the provider's, as it came. `prefix` is the digest of all that the model had seen.
    """
    if not paused and all(isinstance(item, int) for item in layout):
        return None
    extra: dict[str, Json] = {"provider": PROVIDER, "model": model, "layout": layout}
    if any(isinstance(i, dict) and i.get("type") in REASONING for i in layout):
        extra["prefix"] = prefix
    if paused:
        extra["paused"] = True
    return extra


def _as_it_came(part: _Part) -> dict[str, Any]:
    """Return a block of the provider's as it has to be sent back."""
    block = part.block
    if part.kind == "thinking":
        return {**block, "thinking": part.text("thinking")}
    if part.json:
        value, raw = parse_arguments("".join(part.json))
        return {**block, "input": value if raw is None else {}}
    return block


def _is_unreadable(layout: list[Json]) -> bool:
    """Tell whether a person could read none of the reasoning: only its signature came."""
    return not any(
        isinstance(i, dict) and i.get("type") == "thinking" and i.get("thinking") for i in layout
    )


def _plain(value: Json) -> str:
    if not value:
        return ""
    if not isinstance(value, str):
        raise TypeError("a text is no text")
    return value.replace("\x00", "") if "\x00" in value else value


def _number(value: Json) -> int:
    return value if isinstance(value, int) and value > 0 else 0
