"""The history that a model is sent: what every provider accepts, whatever became of the run.

Providers refuse a conversation that breaks their rules, and go on refusing it, so that one orphan
wedges a session for ever. `repaired` is called before each request (`steps/asking.py`), for the
provider that is asked then. The rules are those of the strictest provider:

- a message that asks for tools is followed by one `tool` message that answers each of them, once,
  in the order asked, and holds nothing else; results stand nowhere else;
- ids of tool uses are short, plain and unique in the whole conversation;
- the first message that is not of the system is the user's, and no message is empty;
- what a model's message carries in `extra` goes only to the provider and model that made it, with
  its message unchanged. (That of other messages is the platform's own; no provider looks at it.)

What is repaired depends only on what came before it: a conversation that grows is repaired to one
that grows, so that prompt caches hold. Nothing that was said is lost.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse, Trust
from harness_common.core.values import replace

NO_RESULT: Final = "This call has no result: it was not carried out, or was interrupted."
BEGINNING: Final = "(The beginning of this conversation is not shown.)"
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
"""OpenAI takes 40 characters at most, Anthropic no others than these."""


def fits(extra: Json, provider: str, model: str) -> bool:
    """Tell whether this is material of that provider and model: `{"provider": …, "model": …}`."""
    return (
        isinstance(extra, dict)
        and extra.get("provider") == provider
        and extra.get("model") in {None, model}
    )


def problems(messages: Sequence[Message], provider: str, model: str) -> tuple[str, ...]:
    """Name what a provider may refuse in a conversation; empty when it is well."""
    return tuple(_problems(messages, provider, model))


def repaired(messages: Sequence[Message], provider: str, model: str) -> tuple[Message, ...]:
    """Return the conversation as this model of this provider can be asked with it.

    The same messages when there is nothing to repair; repairing twice changes nothing more.
    """
    if next(_problems(messages, provider, model), None) is None:
        return tuple(messages)
    repair = _Repair(provider, model)
    for turn in _turns(messages):
        repair.add(turn)
    return repair.done()


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────


def _problems(messages: Sequence[Message], provider: str, model: str) -> Iterator[str]:
    seen: set[str] = set()
    asked: tuple[str, ...] = ()
    begun = False
    for number, message in enumerate(messages):
        where = f"message {number}"
        if _is_foreign(message, provider, model):
            yield f"{where}: material of another provider or model"
        if asked and not _answers(message, asked):
            yield f"{where}: does not answer the calls before it, each once and in order"
        if not asked and _has_results(message):
            yield f"{where}: results that nobody asked for"
        if not begun and message.role != "system":
            begun = True
            if message.role == "assistant":
                yield f"{where}: the conversation begins with the model"
        yield from (f"{where}: {what}" for what in _block_problems(message, seen))
        asked = tuple(use.id for use in message.tool_uses()) if message.role == "assistant" else ()
    if asked:
        yield "the last calls have no results"


def _is_foreign(message: Message, provider: str, model: str) -> bool:
    """Tell whether a message carries material of another provider or model. What names no provider
    is the platform's own, and stays with what it says itself.
    """
    extra = message.extra
    if extra is None or fits(extra, provider, model):
        return False
    return message.role == "assistant" or "provider" in extra


def _answers(message: Message, asked: tuple[str, ...]) -> bool:
    ids = tuple(b.tool_use_id for b in message.content if isinstance(b, ToolResult))
    return message.role == "tool" and ids == asked and len(ids) == len(message.content)


def _has_results(message: Message) -> bool:
    return message.role == "tool" or any(isinstance(b, ToolResult) for b in message.content)


def _block_problems(message: Message, seen: set[str]) -> Iterator[str]:
    if not message.content and (message.extra is None or message.role != "assistant"):
        yield "empty"
    for block in message.content:
        match block:
            case Text(text) if _blank(text):
                yield "an empty text"
            case ToolUse(use_id, name):
                if message.role != "assistant":
                    yield f"a call of {name} that is not the model's"
                if use_id in seen or not _ID.fullmatch(use_id):
                    yield f"the id {use_id[:60]!r} is used twice or has a form not all accept"
                seen.add(use_id)
            case _:
                pass


def _blank(text: str) -> bool:
    return not text.strip()


# ── putting it right ─────────────────────────────────────────────────────────────────────────────


def _turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut the conversation before each message of the model, so that a turn holds the answers to
    its calls.
    """
    turn: list[Message] = []
    for message in messages:
        if message.role == "assistant" and turn:
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


@dataclass(slots=True)
class _Answers:
    """The results of one turn, as they are found: by the ids that the model gave, which may be the
    same for several calls; those are answered in the order asked.
    """

    waiting: dict[str, deque[str]]
    found: dict[str, ToolResult] = field(default_factory=dict)
    trust: Trust = "trusted"

    def take(self, result: ToolResult, trust: Trust) -> bool:
        """Keep a result for its call; False when no call waits for it."""
        ids = self.waiting.get(result.tool_use_id)
        if not ids:
            return False
        new = ids.popleft()
        same = new == result.tool_use_id
        self.found[new] = result if same else replace(result, tool_use_id=new)
        self.trust = "untrusted" if trust == "untrusted" else self.trust
        return True

    def message(self, uses: Sequence[ToolUse]) -> Message:
        """Return the one message that answers all calls."""
        missing = (ToolResult(u.id, NO_RESULT, True, "NO_RESULT") for u in uses)
        results = tuple(self.found.get(m.tool_use_id, m) for m in missing)
        return Message("tool", results, self.trust)


@dataclass(slots=True)
class _Repair:
    provider: str
    model: str
    out: list[Message] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    uses: int = 0

    def add(self, turn: Sequence[Message]) -> None:
        """Repair one turn and what answers it."""
        answers = _Answers({})
        uses: tuple[ToolUse, ...] = ()
        others: list[Message] = []
        if turn[0].role == "assistant":
            said, answers = self._said(turn[0])
            uses = said.tool_uses()
            if said.content or said.extra is not None:
                self._begin_with_user()
                self.out.append(said)
            # A model does not answer itself: results among its words count like any others.
            results = tuple(b for b in turn[0].content if isinstance(b, ToolResult))
            turn = [Message("tool", results, turn[0].trust), *turn[1:]] if results else turn[1:]
        for message in turn:
            others += self._other(message, answers)
        if uses:
            self.out.append(answers.message(uses))
        self.out += others

    def done(self) -> tuple[Message, ...]:
        return tuple(self.out)

    def _begin_with_user(self) -> None:
        if all(m.role == "system" for m in self.out):
            self.out.append(Message("user", (Text(BEGINNING),)))

    def _said(self, message: Message) -> tuple[Message, _Answers]:
        """Repair what the model said, and return the results that it waits for."""
        waiting: dict[str, deque[str]] = {}
        content: list[Block] = []
        for block in message.content:
            match block:
                case Text(text) if _blank(text):
                    continue
                case ToolUse(use_id):
                    new = self._own_id(use_id)
                    waiting.setdefault(use_id, deque()).append(new)
                    content.append(block if new == use_id else replace(block, id=new))
                case ToolResult():
                    continue
                case _:
                    content.append(block)
        return self._with(message, tuple(content)), _Answers(waiting)

    def _other(self, message: Message, answers: _Answers) -> Iterator[Message]:
        """Give the results to the calls that wait for them, and return what is left as words."""
        content: list[Block] = []
        for block in message.content:
            match block:
                case Text(text):
                    content += [] if _blank(text) else [block]
                case ToolResult():
                    if not answers.take(block, message.trust):
                        content.append(Text(f"Result of an earlier tool call: {_told(block)}"))
                case ToolUse(_, name, arguments, raw):
                    given = arguments if raw is None else raw
                    content.append(Text(f"Call of the tool {name}: {given}"))
        if content:
            role = "user" if message.role == "tool" else message.role
            yield self._with(replace(message, role=role), tuple(content))

    def _with(self, message: Message, content: tuple[Block, ...]) -> Message:
        """Return a message with this content; its extra stays only with what it came with."""
        changed = content != message.content
        extra = message.extra
        of_provider = message.role == "assistant" or "provider" in (extra or ())
        if (changed and of_provider) or _is_foreign(message, self.provider, self.model):
            extra = None
        if not changed and extra is message.extra:
            return message
        return replace(message, content=content, extra=extra)

    def _own_id(self, use_id: str) -> str:
        """Return the id itself, or one that no earlier call has."""
        self.uses += 1
        number = self.uses
        while use_id in self.ids or not _ID.fullmatch(use_id):
            use_id = f"call_{number}"
            number += 1
        self.ids.add(use_id)
        return use_id


def _told(result: ToolResult) -> str:
    kind = f"Error ({result.error_type}): " if result.is_error else ""
    return kind + result.content
