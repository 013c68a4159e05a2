"""Turns facts and live text into the items of a response and its numbered events. Pure.

Numbers are computed from the durable record alone: text counts one per character, every other
event one, and a failed attempt, or a model that another answered for, a whole `STRIDE`, because how
much of it was shown is not on record. So any process gives the same event the same number, and a
client that was cut off goes on exactly where it was (`starting_after`), within a text too, though
live text is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from harness_api.responses.ids import CallRef, Ref
from harness_api.responses.items import (
    Item,
    arguments_of,
    call_item,
    text_item,
    text_part,
    tool_item,
)
from harness_api.responses.walk import Answered, Asks, Ended, Fact, Failed, Paid, Ran
from harness_common.core.message import ToolUse

STRIDE: Final = 1 << 20
_MOST_LIVE: Final = STRIDE - 64
"""Characters of one answer that are shown before it is whole."""
_ASKING: Final = frozenset({"ask_user"})


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the stream; `seq` counts its last character when it carries text."""

    type: str
    seq: int
    body: Item

    def after(self, seen: int) -> Event | None:
        """Return what a client has not seen that has seen all events up to `seen`."""
        if self.seq <= seen:
            return None
        text = self.body.get("delta", "")
        if self.type != "response.output_text.delta" or self.seq - len(text) >= seen:
            return self
        return Event(self.type, self.seq, self.body | {"delta": text[seen - self.seq :]})

    def json(self) -> Item:
        """Write the event as it is sent."""
        return {"type": self.type, "sequence_number": self.seq, **self.body}


@dataclass(slots=True)
class _Open:
    """A text that is being shown."""

    step: int
    item_id: str
    index: int
    start: int
    """The number of its first event."""
    sent: str = ""

    @property
    def base(self) -> int:
        """The number before that of its first character."""
        return self.start + 1


@dataclass(slots=True)
class Emitter:
    """What has been shown of a response."""

    ref: Ref
    client_tools: frozenset[str]
    output: list[Item] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    next: int = 0
    _attempt: int = 0
    _restarts: int = 0
    """How often the text of this attempt has begun anew."""
    _step: int = 0
    """The last step that answered: live text of it comes too late."""
    _ghosts: int = 0
    """Items that this stream has shown and that are not part of the response."""
    _final: int | None = None
    """Where the text of the last answer stands in the output, if it asked for nothing more."""
    _clients: set[str] = field(default_factory=set)
    """Calls (`step.index`) that the client is to carry out."""
    _open: _Open | None = None

    def plain(self, kind: str, **body: Any) -> Event:
        """Make the next event that carries no text."""
        self.next += 1
        return Event(kind, self.next - 1, body)

    def take(self, fact: Fact) -> Iterator[Event]:
        """Show a fact."""
        match fact:
            case Answered():
                yield from self._answered(fact)
            case Ran():
                yield from self._ran(fact)
            case Failed():
                self._pay(fact)
                yield from self._restarted(fact.restarts)
                yield from self._failed()
                self._restarts = 0
            case Paid():
                self._pay(fact)
            case Asks(calls):
                for call in calls:
                    yield from self._question(call)
            case Ended():
                yield from self._close_ghost()

    def live(self, step: int, at: int, text: str, again: int = 0) -> Iterator[Event]:
        """Show text that is not yet on record; what does not fit to what was shown is left out,
        since it comes with the whole answer. It is another model's that was asked `again`, after so
        many had begun to answer.
        """
        if step <= self._step or at + len(text) > _MOST_LIVE or again < self._restarts:
            return
        yield from self._restarted(again)
        if self._open is None:
            if at != 0:
                return
            yield from self._begin(step)
        assert self._open is not None
        sent = len(self._open.sent)
        if self._open.step == step and at <= sent and at + len(text) > sent:
            yield from self._delta(text[sent - at :])

    def output_text(self, text: str | None) -> Iterator[Event]:
        """Show the run's own output where it is not the model's last text: what was made of an
        answer stands in its place, since clients join the texts that they find.
        """
        last = next((i for i in reversed(self.output) if i["type"] == "message"), None)
        shown = "".join(part["text"] for part in last["content"]) if last else ""
        if text and text != shown:
            self._take_back()
            yield from self._whole(f"msg_{self.ref.run_id.hex}_output", text)

    def _take_back(self) -> None:
        """Leave the text of the last answer out of the response; the stream has shown it."""
        if self._final is not None:
            del self.output[self._final]
            self._ghosts += 1
        self._final = None

    def _answered(self, fact: Answered) -> Iterator[Event]:
        text = fact.message.text()
        self._pay(fact)
        yield from self._restarted(fact.restarts)
        shown = self._open.sent if self._open is not None else ""
        # What a node says is shown while it is said, and need not be what its graph gives: whether
        # it was seen or not, the numbers are the same.
        if not (text.startswith(shown) and text.startswith(fact.node or "")):
            yield from self._failed()
        if text:
            if self._open is None:
                yield from self._begin(fact.step)
            yield from self._finish(text)
        self._step, self._attempt, self._restarts = fact.step, 0, 0
        self._final = len(self.output) - 1 if text else None
        if not fact.counts:
            self._take_back()
        elif fact.message.has_tool_uses():
            self._final = None
        for index, use in enumerate(fact.message.tool_uses()):
            if use.name in self.client_tools:
                yield from self._call(CallRef(self.ref.run_id, fact.step + 1, index), use)

    def _call(self, ref: CallRef, use: ToolUse) -> Iterator[Event]:
        """Show a call that the client is to carry out."""
        self._clients.add(ref.call)
        arguments, index = arguments_of(use), self._index()
        begun = call_item(ref, use, "", "in_progress")
        where = {"output_index": index, "item_id": begun["id"]}
        yield self.plain("response.output_item.added", output_index=index, item=begun)
        kind = "response.function_call_arguments"
        yield self.plain(f"{kind}.delta", delta=arguments, **where)
        yield self.plain(f"{kind}.done", arguments=arguments, name=use.name, **where)
        yield self._done(call_item(ref, use, arguments, "completed"))

    def _ran(self, fact: Ran) -> Iterator[Event]:
        for row in fact.calls:
            if row["name"] not in self.client_tools | _ASKING:
                item = tool_item(self.ref.run_id.hex, row)
                begun = item | {"status": "in_progress", "output": None, "error": None}
                yield self.plain(
                    "response.output_item.added", output_index=self._index(), item=begun
                )
                yield self._done(item)

    def _question(self, call: Item) -> Iterator[Event]:
        """Show a question to a person as text, which the client's next message answers."""
        if call["call"] in self._clients:
            return
        choices = "".join(f"\n- {choice}" for choice in call.get("choices") or ())
        name = call["call"].replace(".", "_")
        yield from self._whole(
            f"msg_{self.ref.run_id.hex}_{name}_question", f"{call['question']}{choices}"
        )

    def _pay(self, fact: Answered | Failed | Paid) -> None:
        self.input_tokens += fact.input_tokens
        self.output_tokens += fact.output_tokens

    def _restarted(self, times: int) -> Iterator[Event]:
        """Begin the text anew until it was done so many times in this attempt: what was shown is of
        a model that did not come to its end.
        """
        while self._restarts < times:
            yield from self._failed()
            self._restarts += 1

    def _failed(self) -> Iterator[Event]:
        start = self._open.start if self._open is not None else self.next
        yield from self._close_ghost()
        self.next = start + STRIDE
        self._attempt += 1

    def _close_ghost(self) -> Iterator[Event]:
        """Close a text that will not be part of the response."""
        shown, self._open = self._open, None
        if shown is None:
            return
        where = _where(shown.item_id, shown.index)
        yield self.plain("response.output_text.done", text=shown.sent, logprobs=[], **where)
        yield self.plain("response.content_part.done", part=text_part(shown.sent), **where)
        item = text_item(shown.item_id, shown.sent, "incomplete")
        yield self.plain("response.output_item.done", output_index=shown.index, item=item)
        self._ghosts += 1

    def _whole(self, item_id: str, text: str) -> Iterator[Event]:
        yield from self._begin(self._step, item_id)
        yield from self._finish(text)

    def _begin(self, step: int, item_id: str | None = None) -> Iterator[Event]:
        again = f"_{self._attempt}" if self._attempt else ""
        item_id = item_id or f"msg_{self.ref.run_id.hex}_{step}{again}"
        self._open = _Open(step, item_id, self._index(), self.next)
        yield self.plain(
            "response.output_item.added",
            output_index=self._open.index,
            item=text_item(item_id, "", "in_progress"),
        )
        where = _where(item_id, self._open.index)
        yield self.plain("response.content_part.added", part=text_part(""), **where)

    def _delta(self, text: str) -> Iterator[Event]:
        shown = self._open
        assert shown is not None
        shown.sent += text
        self.next = shown.base + len(shown.sent) + 1
        where = _where(shown.item_id, shown.index)
        body = {"delta": text, "logprobs": [], **where}
        yield Event("response.output_text.delta", self.next - 1, body)

    def _finish(self, text: str) -> Iterator[Event]:
        shown = self._open
        assert shown is not None
        if rest := text[len(shown.sent) :]:
            yield from self._delta(rest)
        where = _where(shown.item_id, shown.index)
        yield self.plain("response.output_text.done", text=text, logprobs=[], **where)
        yield self.plain("response.content_part.done", part=text_part(text), **where)
        self._open = None
        yield self._done(text_item(shown.item_id, text))

    def _done(self, item: Item) -> Event:
        index = self._index()
        self.output.append(item)
        return self.plain("response.output_item.done", output_index=index, item=item)

    def _index(self) -> int:
        return len(self.output) + self._ghosts


def _where(item_id: str, index: int) -> Item:
    return {"item_id": item_id, "output_index": index, "content_index": 0}
