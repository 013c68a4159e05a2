"""Put an answer together from the events of a Responses stream, or from a whole response. Pure.

Used by `openai_responses`. The last event carries the whole response and counts; what was streamed
before it is kept for servers that leave it empty there.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from harness_common.contracts.model import Finish, Usage
from harness_common.core.message import Block, Json, Message, Text, ToolUse
from harness_worker.models.openai_errors import ServerError, read_error
from harness_worker.models.responses_input import PROVIDER
from harness_worker.models.tool_args import parse_arguments

MAX_ITEMS: Final = 2048

_THINKING: Final = frozenset(
    {
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_part.added",
    }
)
_ENDED: Final = frozenset({"completed", "incomplete"})
_LAST: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)


def read_response_error(event: Json) -> ServerError | None:
    """Find the error in an event or a whole response; None when there is none.

    Also a response that has no answer and never will have one on this connection: failed,
    cancelled, or queued although nobody asked for that.
    """
    if not isinstance(event, dict):
        return read_error(event)
    kind = event.get("type")
    if kind == "error":
        inner = event.get("error")
        return read_error({"error": inner if isinstance(inner, dict) else {**event, "type": None}})
    if isinstance(kind, str) and kind.startswith("response.") and kind not in _LAST:
        return None  # by far the most
    response = event.get("response") if kind in _LAST else event
    if not isinstance(response, dict) or response.get("object") == "error":
        return read_error(event)
    status = response.get("status")
    if status in _ENDED:
        return None
    if error := read_error(response):
        return error
    if status in {"failed", "cancelled", "queued", "in_progress"}:
        return ServerError(f"the response is {status} and has no answer", ("server_error",))
    return None


class _Item:
    """One output item in the making."""

    __slots__ = ("arguments", "id", "item", "refusal", "text")

    def __init__(self, item: dict[str, Json] | None, item_id: str) -> None:
        self.item = item
        self.id = item_id
        self.text: list[str] = []
        self.refusal: list[str] = []
        self.arguments: list[str] = []

    def whole(self) -> dict[str, Json]:
        """Return the item as far as it came."""
        item = dict(self.item or {})
        if self.arguments or item.get("type") == "function_call":
            item.setdefault("type", "function_call")
            item["arguments"] = item.get("arguments") or "".join(self.arguments)
        elif (self.text or self.refusal) and not item.get("content"):
            item.setdefault("type", "message")
            item["content"] = [
                {"type": "output_text", "text": "".join(self.text)},
                {"type": "refusal", "refusal": "".join(self.refusal)},
            ]
        return item


class ResponsesAnswer:
    """One answer in the making. `asked` is the model that was asked; with `keep_text`, reasoning
    that can be read is kept too.
    """

    __slots__ = (
        "_asked", "_by_id", "_by_index", "_items", "_keep_text", "_response", "_shown", "alive",
        "done", "id", "model", "size",
    )  # fmt: skip

    def __init__(self, asked: str, *, keep_text: bool = False) -> None:
        self._asked = asked
        self._keep_text = keep_text
        self._items: list[_Item] = []
        self._by_index: dict[int, _Item] = {}
        self._by_id: dict[str, _Item] = {}
        self._response: dict[str, Json] = {}
        self._shown = False
        self.alive = False
        self.done = False
        self.id = ""
        self.model = ""
        self.size = 0

    @property
    def complete(self) -> bool:
        """Tell whether the server ended the answer; a stream that just stops was cut."""
        return self.done or bool(self._response)

    def add(self, event: dict[str, Json]) -> str:
        """Take one event, or a whole response, and return the text it adds for a reader.

        Raises `TypeError`, `AttributeError`, `LookupError` or `ValueError` when it has not the form
        of one. Events that nobody needs, or that are not known, are passed over.
        """
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self._at(event).text.append(piece := _text(event["delta"]))
            return self._show(piece)
        if kind == "response.function_call_arguments.delta":
            piece = _text(event["delta"])
            self._at(event).arguments.append(piece)
            self.alive = True
            self.size += len(piece)
            return ""
        if kind == "response.refusal.delta":
            self._at(event).refusal.append(piece := _text(event["delta"]))
            return self._show(piece)
        if kind in _THINKING:
            self.alive = True  # shows that the model works; never shown
            return ""
        return self._add_rare(kind, event)

    def message(self) -> Message:
        """Return the answer as a message; every tool use has an id that is unique in it."""
        content: list[Block] = []
        reasoning: list[tuple[int, Json]] = []
        phases: list[tuple[int, Json]] = []
        seen: set[str] = set()
        output = self._output()
        was_cut = self._response.get("status") == "incomplete"
        for item in output:
            kind = item.get("type")
            if kind == "reasoning":
                reasoning.append((len(content), item))
            elif kind == "message" and (text := _said(item)):
                if phase := item.get("phase"):
                    phases.append((len(content), phase))
                content.append(Text(text))
            elif kind == "function_call":
                content.append(_tool_use(item, seen, cut=was_cut and item is output[-1]))
        return Message(
            "assistant", tuple(content), extra=self._extra(len(content), reasoning, phases)
        )

    def add_whole(self, body: dict[str, Json]) -> str:
        """Take an answer that came in one piece; raises `ValueError` when there is none in it."""
        text = self.add(body)
        if not self.alive:
            raise ValueError("there is no answer in it")
        return text

    def finish(self) -> Finish:
        """Say how the answer ended: by its tool calls first, whatever the status says."""
        output = self._output()
        if any(item.get("type") == "function_call" for item in output):
            return "tool_calls"
        details = self._response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        refused = any(p.get("type") == "refusal" and p.get("refusal") for p in _parts(output))
        if refused or reason == "content_filter":
            return "refusal"
        return "length" if self._response.get("status") == "incomplete" else "stop"

    def usage(self) -> Usage | None:
        """Return the tokens the server reported, or None."""
        said = self._response.get("usage")
        if not isinstance(said, dict):
            return None
        details = said.get("input_tokens_details")
        usage = Usage(
            _count(said.get("input_tokens")),
            _count(said.get("output_tokens")),
            _count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        )
        return usage if usage.input_tokens else None

    def _add_rare(self, kind: Json, event: dict[str, Json]) -> str:
        if kind == "response.output_item.added":
            self._begin(event)
        elif kind == "response.output_item.done":
            item = event["item"]
            slot = self._at(event, item)
            slot.item = item
            self.alive = True
        elif kind in _LAST:
            return self._end(event["response"])
        elif kind == "response.created":
            self._name(event["response"])
        elif event.get("object") == "response":
            return self._end(event)
        elif kind is None:
            raise ValueError("an event without a type")
        return ""

    def _begin(self, event: dict[str, Json]) -> None:
        item = event["item"]
        item_id = str(item.get("id") or "")
        if len(self._items) >= MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items in one answer")
        slot = _Item(item, item_id)
        self._items.append(slot)
        if isinstance(index := event.get("output_index"), int):
            self._by_index[index] = slot
        if item_id:
            self._by_id[item_id] = slot
        self.alive = True

    def _at(self, event: dict[str, Json], item: dict[str, Json] | None = None) -> _Item:
        """Find the item that an event belongs to, or begin one that was not announced.

        By its id, which is right where a server gives every item the same index; by its index where
        ids change from event to event.
        """
        item_id = str((item.get("id") if item else event.get("item_id")) or "")
        slot = self._by_id.get(item_id) if item_id else None
        if slot is None:
            index = event.get("output_index")
            slot = self._by_index.get(index) if isinstance(index, int) else None
        if slot is None:
            self._begin(
                {"item": item or {"id": item_id}, "output_index": event.get("output_index")}
            )
            slot = self._items[-1]
        return slot

    def _end(self, response: dict[str, Json]) -> str:
        self._name(response)
        self._response = response
        self.alive = self.done = True
        if self._shown:
            return ""
        text = "".join(_said(item) for item in self._output() if item.get("type") == "message")
        return self._show(text)

    def _name(self, response: dict[str, Json]) -> None:
        self.id = self.id or str(response.get("id") or "")
        self.model = self.model or str(response.get("model") or "")

    def _show(self, piece: str) -> str:
        if piece:
            self.alive = self._shown = True
            self.size += len(piece)
        return piece

    def _output(self) -> list[dict[str, Json]]:
        """Return the items: those of the last event, unless it has fewer than were streamed."""
        output = self._response.get("output")
        if isinstance(output, list) and len(output) >= len(self._items):
            return output
        return [slot.whole() for slot in self._items]

    def _extra(
        self, blocks: int, reasoning: list[tuple[int, Json]], phases: list[tuple[int, Json]]
    ) -> Json:
        """Return what goes back to the model with this answer, or None.

        Reasoning is sent back unchanged or not at all. It is of use only encrypted; and where it
        can be read it is not kept unless that was asked for.
        """
        kept = [(at, item) for at, item in reasoning if at < blocks]  # nothing follows: of no use
        readable = any(item.get("summary") or item.get("content") for _, item in kept)
        if not all(item.get("encrypted_content") for _, item in kept) or (
            readable and not self._keep_text
        ):
            kept = []
        if not kept and not phases:
            return None
        return {
            "provider": PROVIDER,
            "model": self._asked,
            "blocks": blocks,
            "reasoning": [list(pair) for pair in kept],
            "phases": [list(pair) for pair in phases],
        }


def _tool_use(item: dict[str, Json], seen: set[str], *, cut: bool) -> ToolUse:
    use_id = str(item.get("call_id") or "").replace("\x00", "")
    if not use_id or use_id in seen:
        use_id = f"call_{uuid4().hex[:24]}"
    seen.add(use_id)
    # Cut off before its first argument, it is no call without arguments.
    value, raw = parse_arguments(_text(item.get("arguments")) or ("{" if cut else ""))
    return ToolUse(use_id, _text(item.get("name")), value, raw)


def _parts(output: list[dict[str, Json]]) -> list[dict[str, Json]]:
    return [
        part
        for item in output
        if item.get("type") == "message"
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]


def _said(item: dict[str, Json]) -> str:
    """Return what a message item says; the words of a refusal where there are no others."""
    content = item.get("content")
    if isinstance(content, str):
        return _text(content)
    parts = _parts([item])
    text = "".join(_text(p.get("text")) for p in parts if p.get("type") == "output_text")
    return text or "".join(_text(p.get("refusal")) for p in parts if p.get("type") == "refusal")


def _text(value: Json) -> str:
    if not value:
        return ""
    if not isinstance(value, str):
        raise TypeError("text is not text")
    return value.replace("\x00", "") if "\x00" in value else value


def _count(value: Json) -> int:
    return value if isinstance(value, int) and value > 0 else 0
