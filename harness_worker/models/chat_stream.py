"""Put an answer together from the chunks of a Chat Completions stream. Pure: no I/O and no clock.

Used by `openai_chat`. Deltas stay plain dicts: a class for each would cost more than all the rest.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import orjson

from harness_common.contracts.model import Finish, Usage
from harness_common.core.message import Block, Json, Message, Text, ToolUse
from harness_worker.models.tool_args import is_object, parse_arguments

MAX_TOOL_CALLS: Final = 1024
_CUT: Final = frozenset({"length", "content_filter"})
"""How an answer ends that has no end."""


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class ChatAnswer:
    """One answer in the making."""

    __slots__ = (
        "_by_key", "_calls", "_current", "_finish", "_refusal", "_text", "_usage",
        "alive", "done", "id", "model", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.alive = False
        """True once the model has produced anything: text, reasoning, a tool call, a finish."""
        self.done = False
        """True once the server said `[DONE]` (or answered in one piece)."""
        self.id = ""
        self.model = ""
        self.size = 0
        """Characters taken so far, for the caller's limit."""
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._current: dict[int | None, _Call] = {}
        self._by_key: dict[tuple[int | None, str], _Call] = {}
        self._finish = ""
        self._usage: dict[str, Json] | None = None

    @property
    def complete(self) -> bool:
        """Tell whether the server ended the answer; a stream that just stops was cut."""
        return self.done or bool(self._finish)

    def add(self, event: dict[str, Json]) -> str:
        """Take one chunk, or a whole completion, and return the text it adds for a reader.

        Raises `TypeError`, `AttributeError` or `ValueError` when it has not the form of a chunk.
        """
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage  # some servers send it with every chunk: the last one counts
        if not self.id:
            self.id, self.model = str(event.get("id") or ""), str(event.get("model") or "")
        choices = event.get("choices")
        if not choices:  # the usage chunk
            return ""
        choice = choices[0]
        whole = choice.get("message")
        delta = choice.get("delta") or whole or {}
        if finish := choice.get("finish_reason"):
            self._finish = str(finish)
            self.alive = True
        if delta.get("reasoning_content") or delta.get("reasoning"):
            self.alive = True  # shows that the model works; never kept
        for position, call in enumerate(delta.get("tool_calls") or ()):
            self._add_call(call, position if whole else None)
        refusal = _text_of(delta.get("refusal"))
        if refusal:
            self._refusal.append(refusal)
        piece = _text_of(delta.get("content"))
        if piece:
            self._text.append(piece)
        shown = piece + refusal
        if shown:
            self.alive = True
            self.size += len(shown)
        return shown

    def message(self) -> Message:
        """Return the answer as a message; every tool use has an id that is unique in it."""
        content: list[Block] = []
        if text := "".join(self._text) or "".join(self._refusal):
            content.append(Text(text))
        seen: set[str] = set()
        for call in self._calls:
            use_id = call.id
            if not use_id or use_id in seen:
                use_id = f"call_{uuid4().hex[:24]}"
            seen.add(use_id)
            text = "".join(call.arguments)
            if not text and call is self._calls[-1] and self._finish in _CUT:
                text = "{"  # cut off before its first argument: no call without arguments
            value, raw = parse_arguments(text)
            content.append(ToolUse(use_id, call.name, value, raw))
        return Message("assistant", tuple(content))

    def add_whole(self, body: dict[str, Json]) -> str:
        """Take an answer that came in one piece; raises `ValueError` when there is none in it."""
        text = self.add(body)
        if not self.alive:
            raise ValueError("there is no answer in it")
        return text

    def finish(self) -> Finish:
        """Say how the answer ended: by its tool calls first, because servers end those with `stop`
        too.
        """
        if self._calls:
            return "tool_calls"
        if self._refusal or self._finish == "content_filter":
            return "refusal"
        return "length" if self._finish == "length" else "stop"

    def usage(self) -> Usage | None:
        """Return the tokens the server reported, or None."""
        if self._usage is None:
            return None
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        usage = Usage(
            _count(self._usage.get("prompt_tokens")),
            _count(self._usage.get("completion_tokens")),
            _count(cached),
        )
        return usage if usage.input_tokens else None

    def _add_call(self, delta: dict[str, Any], position: int | None) -> None:
        function = delta.get("function") or {}
        use_id = str(delta.get("id") or "").replace("\x00", "")
        name = str(function.get("name") or "").replace("\x00", "")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = _dump(arguments)
        index = delta.get("index")
        call = self._call_for(position if index is None else index, use_id, name, arguments)
        if use_id and not call.id:
            call.id = use_id
        if name and name != call.name:
            call.name += name
        if arguments:
            call.arguments.append(arguments)
        self.alive = True
        self.size += len(name) + len(arguments)

    def _call_for(self, index: int | None, use_id: str, name: str, arguments: str) -> _Call:
        """Find the call a delta belongs to, or begin one.

        The index alone is not enough: some servers give every parallel call index 0. The id alone
        is not either: some repeat it, send it empty, or make up a new one for every delta.
        """
        call = self._by_key.get((index, use_id)) if use_id else None
        call = call or self._current.get(index)
        if call is None and index is None and not name and self._calls:
            call = self._calls[-1]
        if call is None or _begins_another(call, use_id, name, arguments):
            if len(self._calls) >= MAX_TOOL_CALLS:
                raise ValueError(f"more than {MAX_TOOL_CALLS} tool calls in one answer")
            call = _Call()
            self._calls.append(call)
        self._current[index] = call
        if use_id:
            self._by_key[index, use_id] = call
        return call


def _begins_another(call: _Call, use_id: str, name: str, arguments: str) -> bool:
    if not name or not call.name:
        return False  # only the first delta of a call names the tool
    if use_id and call.id and use_id != call.id:
        return True
    # The same id, or none: a second whole call, unless the server merely repeats the name while
    # arguments grow.
    return bool(arguments or name != call.name) and is_object("".join(call.arguments))


def _text_of(value: Json) -> str:
    if not value:
        return ""
    if isinstance(value, list):  # content parts, as some servers send them
        value = "".join(str(part.get("text") or "") for part in value)
    if not isinstance(value, str):
        raise TypeError("content is not text")
    return value.replace("\x00", "") if "\x00" in value else value


def _dump(value: Json) -> str:
    return orjson.dumps(value).decode()


def _count(value: Json) -> int:
    return value if isinstance(value, int) and value > 0 else 0
