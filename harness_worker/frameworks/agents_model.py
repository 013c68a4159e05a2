"""Models for OpenAI Agents: ours behind the framework's interface, and the record of what any model
answered in a turn, so that a turn that is done anew is not answered otherwise.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from agents import FunctionTool, Handoff, ModelResponse, Usage
from agents.models.interface import Model as AgentsModel
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic import TypeAdapter

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import ChatRequest, ChatResult, Model, ToolDef
from harness_common.core.budget import FREE, Limits, Spent, require_left
from harness_common.core.errors import Permanent
from harness_common.core.fallback import options_for
from harness_common.core.history import repaired
from harness_common.core.message import Json, Message, Role, Text, ToolResult, ToolUse
from harness_common.store.foreign import Blob, ForeignStore, Place
from harness_worker.frameworks.calls import WITHIN
from harness_worker.frameworks.turn import Sample
from harness_worker.models.tool_args import parse_arguments

PREFIX: Final = "harness/"
"""How the names of our models begin: `harness/openai/gpt-5-mini`."""
_RESPONSE: Final = TypeAdapter(ModelResponse)
_ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


@dataclass
class Turns:
    """The answers of one turn, kept in the order they were asked for."""

    store: ForeignStore
    thread: str
    step: int
    kept: Callable[[Spent], None] = lambda _: None
    """Told what an answer of ours has cost that is on record now."""
    found: Callable[[Spent], None] = lambda _: None
    """Told the same of one that was on record already."""
    limits: Limits = field(default_factory=Limits)
    before: Spent = FREE
    """What the run has used before this turn."""
    spent: Spent = FREE
    """What the answers of this turn have cost, those on record already too."""
    _asked: Counter[str] = field(default_factory=Counter)
    """How many answers were asked for, by the call of a tool that they are asked for within: which
    of two agents that work side by side asks first is chance.
    """

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let models record their answers here while the block lasts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    async def answer(self, model: AgentsModel, *args: Any, **more: Any) -> ModelResponse:
        """Return what was answered before, or ask and keep the answer before it is used."""
        place, within = Place(self.thread, "model", f"{self.step:09d}"), WITHIN.get()
        self._asked[within] += 1
        task = f"{within}{self._asked[within]:04d}"
        rows = [row for row in await self.store.writes(place) if row["task_id"] == task]
        found = {row["channel"]: row["snapshot"] for row in rows}
        tell = self.kept
        if found:
            response, tell = _RESPONSE.validate_json(found["response"]), self.found
            cost_usd = float(found.get("cost_usd", b"0"))
        else:
            # An agent within a tool asks as often as it likes in one turn.
            require_left(self.limits, self.before + self.spent)
            asked = model.answer if isinstance(model, OurModel) else partial(_theirs, model)
            response, cost_usd = await asked(*args, **more)
            kept = [
                (0, "response", Blob("json", _RESPONSE.dump_json(response))),
                (1, "cost_usd", Blob("json", json.dumps(cost_usd).encode())),
            ]
            await self.store.put_writes(place, task, "", kept)
        spent = Spent(response.usage.input_tokens, response.usage.output_tokens, cost_usd)
        if isinstance(model, OurModel):
            tell(spent)
        self.spent += spent
        return response


async def _theirs(model: AgentsModel, *args: Any, **more: Any) -> tuple[ModelResponse, float]:
    """Ask a model of the framework, whose price nobody knows."""
    return await model.get_response(*args, **more), 0.0


_CURRENT: ContextVar[Turns] = ContextVar("harness_turns")


class Recorded(AgentsModel):
    """A model whose answers are kept while Harness runs its agent."""

    def __init__(self, inner: AgentsModel) -> None:
        self.inner = inner

    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        """Answer, or give back the recorded answer."""
        turns = _CURRENT.get(None)
        if turns is None:
            return await self.inner.get_response(*args, **more)
        return await turns.answer(self.inner, *args, **more)

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Stream, outside of Harness."""
        return self.inner.stream_response(*args, **more)


class OurModel(AgentsModel):
    """One of our models, asked by OpenAI Agents."""

    def __init__(self, model: Model, name: str, spec: AgentSpec, step: int, sample: Sample) -> None:
        self._model, self._name, self._spec, self._step = model, name, spec, step
        self._sample = sample

    async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
        """Ask the model once."""
        return (await self.answer(*args, **more))[0]

    async def answer(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: Any,  # noqa: ANN401
        tools: list[Any],
        output_schema: Any,  # noqa: ANN401
        handoffs: list[Handoff[Any, Any]],
        tracing: Any,  # noqa: ANN401
        **more: Any,
    ) -> tuple[ModelResponse, float]:
        """Ask the model once; returns the answer with what it cost."""
        del tracing, more
        if output_schema is not None and not output_schema.is_plain_text():
            raise Permanent(
                "models of Harness answer OpenAI Agents with text; give this agent another model, "
                "or no output type",
                code="NOT_SUPPORTED",
            )
        spec = self._spec
        provider, _, own = self._name.partition("/")
        request = ChatRequest(
            model=own,
            # An agent within a tool takes several turns in a step, whose calls have the same ids.
            messages=repaired(messages_of(input), provider, own),
            system=system_instructions or "",
            tools=[_tool(one) for one in [*tools, *handoffs]],
            max_tokens=model_settings.max_tokens or spec.max_output_tokens,
            temperature=spec.temperature
            if model_settings.temperature is None
            else model_settings.temperature,
            first_token_timeout_s=spec.first_token_timeout_s,
            total_timeout_s=spec.model_timeout_s,
            options=options_for(self._name, spec.model, spec.model_options),
            step=self._step,
        )
        answer = await self._sample(self._model, request)
        return _response(answer, self._step), answer.cost_usd or 0.0

    def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Refuse: a run's turns are not streamed."""
        del args, more
        raise Permanent("turns of a run are not streamed", code="NOT_SUPPORTED")


def _tool(one: Any) -> ToolDef:  # noqa: ANN401 - any tool of the framework
    if isinstance(one, Handoff):
        return ToolDef(one.tool_name, one.tool_description, one.input_json_schema)
    if isinstance(one, FunctionTool):
        return ToolDef(one.name, one.description, one.params_json_schema)
    raise Permanent(
        f"models of Harness know no hosted tools such as {type(one).__name__}",
        code="NOT_SUPPORTED",
    )


def messages_of(given: str | Sequence[Json]) -> list[Message]:
    """Read the framework's items as our messages."""
    if isinstance(given, str):
        return [Message("user", (Text(given),))]
    out: list[Message] = []
    for item in given:
        message = _message(item)
        last = out[-1] if out else None
        if message is None:
            continue
        if last is not None and last.role == message.role and message.role in {"assistant", "tool"}:
            out[-1] = Message(last.role, (*last.content, *message.content))
        else:
            out.append(message)
    return out


def _message(item: Json) -> Message | None:
    match item.get("type", "message"):
        case "message":
            return Message(_ROLES[item["role"]], (Text(_text(item["content"])),))
        case "function_call":
            given, raw = parse_arguments(item["arguments"] or "{}")
            return Message("assistant", (ToolUse(item["call_id"], item["name"], given, raw),))
        case "function_call_output":
            return Message("tool", (ToolResult(item["call_id"], _text(item["output"])),))
    return None


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _response(result: ChatResult, step: int) -> ModelResponse:
    output: list[Any] = []
    if text := result.message.text():
        part = ResponseOutputText(text=text, annotations=[], type="output_text")
        output.append(
            ResponseOutputMessage(
                id=f"msg_{step}",
                content=[part],
                role="assistant",
                status="completed",
                type="message",
            )
        )
    output += [
        ResponseFunctionToolCall(
            call_id=f"call_{step}_{n}",
            name=use.name,
            # What could not be read stays as it came: it is no call without arguments.
            arguments=use.raw or json.dumps(use.input, ensure_ascii=False),
            type="function_call",
        )
        for n, use in enumerate(result.message.tool_uses())
    ]
    used = result.usage
    usage = Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
    )
    return ModelResponse(output=output, usage=usage, response_id=None)
