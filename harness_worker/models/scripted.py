"""The scripted model: it gives the answers that the agent declares, so that runs can be shown and
tested offline.

Built by `registry` for `scripted/<name>`. Everything it says is labelled: the model is
`scripted/<name>` and `capabilities.scripted` is True. The answer is a pure function of the
conversation and the attempt, so that a replay or another process gives the same.

A script is the list `options["script"]`; each item is an object with any of

    text            the answer's text
    tools           [{"name": …, "input": {…}}, …]
    stream          ["tok ", "en"]: text in pieces
    continue        true: finish `pause`, so that the run asks again
    delay_s         time until the first token
    error           "limited" (with retry_after_s), "transient" or "permanent"
    times           raise the error while attempt ≤ times; always without it

Strings in texts and tool inputs may hold `{{last_result}}`, `{{result:N}}` and `{{artifact:N}}`,
counted from 1 over the whole conversation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness_common.contracts.model import (
    Capabilities,
    ChatRequest,
    ChatResult,
    Finish,
    OnDelta,
    Usage,
)
from harness_common.core.context_view import about_summary, is_summary, section_of
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.hints import is_hint
from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse
from harness_worker.models.estimate import message_tokens, request_tokens

_REFERENCE: Final = re.compile(r"\{\{(last_result|result:(\d+)|artifact:(\d+))\}\}")
_ARTIFACT: Final = re.compile(r"art_[0-9a-f]{32}")


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    input: dict[str, Json] = Field(default_factory=dict)


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    text: str = ""
    stream: tuple[str, ...] = ()
    tools: tuple[_Tool, ...] = ()
    go_on: bool = Field(default=False, alias="continue")
    delay_s: float = Field(default=0.0, ge=0, le=3600)
    error: str | None = Field(default=None, pattern="^(limited|transient|permanent)$")
    retry_after_s: float | None = Field(default=None, ge=0)
    times: int | None = Field(default=None, ge=1)


_ITEM: Final = TypeAdapter(_Item)


class Scripted:
    """One scripted model; `name` is what stands behind the slash."""

    __slots__ = ("_name", "capabilities", "provider", "scope")

    def __init__(self, name: str) -> None:
        self.provider = "scripted"
        self.capabilities = Capabilities(scripted=True)
        self._name = f"scripted/{name}"
        self.scope = f"scripted:{name}:none"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Give the declared answer, as `Model.chat` says.

        Codes of `Permanent`: SCRIPT_MISSING, SCRIPT_INVALID, SCRIPT_EXHAUSTED, SCRIPT_REFERENCE,
        SCRIPTED_ERROR.
        """
        position, item = self._item(request)
        await self._wait(item.delay_s, request)
        if error := self._error(item, request):
            raise error
        fill = _Filler(request.messages)
        pieces = [fill.text(piece) for piece in (item.stream or (item.text,)) if piece]
        content: list[Block] = [Text("".join(pieces))] if pieces else []
        turn = sum(
            about_summary(m)["turns"] if is_summary(m) else m.role == "assistant"
            for m in request.messages
        )
        content += [
            ToolUse(f"call_{turn + 1}_{number}", tool.name, fill.json(tool.input))
            for number, tool in enumerate(item.tools, 1)
        ]
        if on_delta is not None:
            for piece in pieces:
                await on_delta(piece)
        message = Message("assistant", tuple(content))
        return ChatResult(
            message=message,
            usage=Usage(request_tokens(request), message_tokens(message), estimated=True),
            finish=_finish(item),
            model=self._name,
            provider_request_id=f"script_{position + 1}",
            cost_usd=0.0,
            first_token_ms=item.delay_s * 1000,
        )

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request; see `estimate`."""
        return request_tokens(request)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _item(self, request: ChatRequest) -> tuple[int, _Item]:
        script = request.options.get("script")
        if not isinstance(script, list | tuple) or not script:
            raise Permanent(
                f"{self._name} needs a script: set the model option `script` to a list of answers, "
                'for example [{"text": "Hello."}]',
                code="SCRIPT_MISSING",
            )
        position = script_position(request.messages)
        if position >= len(script):
            raise Permanent(
                f"{self._name}: the script has {len(script)} answers and this is call "
                f"{position + 1} since the last user message; add an answer",
                code="SCRIPT_EXHAUSTED",
                answers=len(script),
                call=position + 1,
            )
        try:
            return position, _ITEM.validate_python(script[position])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "item"
            raise Permanent(
                f"{self._name}: answer {position + 1} of the script is wrong at {where}: "
                f"{first['msg']}",
                code="SCRIPT_INVALID",
                answer=position + 1,
                field=where,
            ) from None

    async def _wait(self, delay_s: float, request: ChatRequest) -> None:
        limit_s = min(request.first_token_timeout_s, request.total_timeout_s)
        await asyncio.sleep(min(delay_s, limit_s))
        if delay_s > limit_s:
            first = request.first_token_timeout_s < request.total_timeout_s
            raise Transient(
                f"{self._name}: no token within {limit_s} s",
                code="FIRST_TOKEN_TIMEOUT" if first else "MODEL_TIMEOUT",
                limit_s=limit_s,
            )

    def _error(self, item: _Item, request: ChatRequest) -> HarnessError | None:
        attempt = request.options.get("attempt")
        attempt = attempt if isinstance(attempt, int) else 1
        if item.error is None or (item.times is not None and attempt > item.times):
            return None
        words = f"{self._name}: declared {item.error} error, attempt {attempt}"
        if item.error == "limited":
            return Limited(words, retry_after_s=item.retry_after_s, scope=self.scope)
        if item.error == "transient":
            return Transient(words, code="MODEL_UNAVAILABLE")
        return Permanent(words, code="SCRIPTED_ERROR")


def script_position(messages: Sequence[Message]) -> int:
    """Count the model's answers since the last user message; tool results are not user messages,
    nor is what a guard says.
    """
    count = 0
    for message in reversed(messages):
        if is_summary(message):
            count += about_summary(message)["answers"]
            break
        of_user = message.role == "user" and not _only_results(message)
        if of_user and not is_hint(message) and section_of(message) is None:
            break
        count += message.role == "assistant"
    return count


def _only_results(message: Message) -> bool:
    return bool(message.content) and all(isinstance(b, ToolResult) for b in message.content)


def _finish(item: _Item) -> Finish:
    if item.tools:
        return "tool_calls"
    return "pause" if item.go_on else "stop"


class _Filler:
    """Puts earlier tool results in the place of references; what they say is not filled in turn."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._results = [
            block.content
            for message in messages
            for block in message.content
            if isinstance(block, ToolResult)
        ]
        # Results that a summary stands for keep their numbers, but cannot be told any more.
        self._gone: int = sum(about_summary(m)["results"] for m in messages if is_summary(m))

    def text(self, text: str) -> str:
        return _REFERENCE.sub(self._value, text).replace("\x00", "")

    def json(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(v) for v in value]
        if isinstance(value, dict):
            return {k: self.json(v) for k, v in value.items()}
        return value

    def _value(self, match: re.Match[str]) -> str:
        what: str = match[1]
        result, artifact = match[2], match[3]
        found: list[str]
        if artifact:
            # dict, not set: each id once, in the order of first sight
            found = list(dict.fromkeys(a for r in self._results for a in _ARTIFACT.findall(r)))
            number = int(artifact)
        else:
            found = self._results
            number = int(result) - self._gone if result else len(found)
        if not 1 <= number <= len(found):
            raise Permanent(
                f"The script refers to {{{{{what}}}}}, "
                f"but the conversation has {len(found)} of those so far",
                code="SCRIPT_REFERENCE",
                reference=what,
                found=len(found),
            )
        return found[number - 1]
