"""Write our messages in the form of OpenAI's Responses API. Pure.

Used by `openai_responses`. Nothing is kept at the server (`store` is false), so every request
carries the whole conversation, and the reasoning of the same model as it was received. What is
accepted at all is decided in `turns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeGuard

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.message import Json, Message, Text, ToolUse
from harness_worker.models.turns import Turn, turns

PROVIDER: Final = "openai-responses"
"""In `Message.extra`: who can make use of what stands there."""


def input_items(request: ChatRequest, model: str, *, reasoning: bool = True) -> list[Json]:
    """Return the `input` of a request for `model`; without `reasoning`, none is sent back."""
    items: list[Json] = []
    for turn in turns(request.messages):
        items += _turn(turn, model, reasoning)
    return items


def has_reasoning(items: Sequence[Json]) -> bool:
    """Tell whether any reasoning goes back to the model."""
    return any(item.get("type") == "reasoning" for item in items)


def response_tools(tools: Sequence[ToolDef]) -> list[Json]:
    """Return the `tools` of a request."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            # The default here is true, which refuses most schemas; ours are checked by the runner.
            "strict": False,
        }
        for tool in tools
    ]


def response_tool_choice(choice: str) -> Json:
    """Return `tool_choice`: a word of the protocol, or the one tool that must be called."""
    return (
        choice if choice in {"auto", "required", "none"} else {"type": "function", "name": choice}
    )


def _turn(turn: Turn, model: str, reasoning: bool) -> Iterator[Json]:
    if turn.assistant is not None:
        yield from _assistant(turn.assistant, turn, model, reasoning)
    for call, result in zip(turn.calls, turn.results, strict=True):
        yield {"type": "function_call_output", "call_id": call.id, "output": result}
    for role, text in turn.others:
        yield _message(role, text)


def _assistant(message: Message, turn: Turn, model: str, reasoning: bool) -> Iterator[Json]:
    extra = _extra(message, model)
    thoughts: dict[int, list[Json]] = {}
    if extra is not None and reasoning:
        for at, item in extra["reasoning"]:
            thoughts.setdefault(at, []).append(item)
    phases = dict(extra["phases"]) if extra is not None else {}
    calls = iter(turn.calls)
    for at, block in enumerate(message.content):
        yield from thoughts.get(at, ())
        if isinstance(block, Text):
            said = _message("assistant", block.text)
            phase = phases.get(at)
            yield said if phase is None else {**said, "phase": phase}
        elif isinstance(block, ToolUse):
            call = next(calls)
            yield {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }


def _message(role: str, text: str) -> dict[str, Json]:
    # With its type, which OpenAI does not need: llama.cpp does for what the model said.
    return {"type": "message", "role": role, "content": text}


def _extra(message: Message, model: str) -> dict[str, Json] | None:
    """Return what this model left with its answer; None when there is nothing that fits it now.

    All of it or none: reasoning of another model, or of an answer that was changed since, is
    refused by the server.
    """
    extra = message.extra
    if not isinstance(extra, dict) or extra.get("provider") != PROVIDER:
        return None
    if extra.get("model") != model or extra.get("blocks") != len(message.content):
        return None
    reasoning, phases = extra.get("reasoning"), extra.get("phases")
    size = len(message.content)
    return extra if _placed(reasoning, size) and _placed(phases, size) else None


def _placed(pairs: Json, size: int) -> TypeGuard[list[tuple[int, Json]]]:
    return isinstance(pairs, list) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and 0 <= pair[0] < size
        for pair in pairs
    )
