"""Write our messages in the form of Chat Completions. Pure.

Used by `openai_chat`. What is accepted at all is decided in `turns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.message import Json
from harness_worker.models.turns import Turn, turns


def chat_messages(request: ChatRequest) -> list[Json]:
    """Return the `messages` of a request, the system text first."""
    out: list[Json] = []
    if request.system:
        out.append({"role": "system", "content": request.system})
    for turn in turns(request.messages):
        out += _turn(turn)
    return out


def chat_tools(tools: Sequence[ToolDef]) -> list[Json]:
    """Return the `tools` of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
            },
        }
        for tool in tools
    ]


def chat_tool_choice(choice: str) -> Json:
    """Return `tool_choice`: a word of the protocol, or the one tool that must be called."""
    if choice in {"auto", "required", "none"}:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _turn(turn: Turn) -> Iterator[Json]:
    if turn.assistant is not None:
        text = turn.assistant.text()
        if turn.calls:
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in turn.calls
            ]
            yield {"role": "assistant", "content": text or None, "tool_calls": calls}
        else:
            yield {"role": "assistant", "content": text}
    for call, result in zip(turn.calls, turn.results, strict=True):
        yield {"role": "tool", "tool_call_id": call.id, "content": result}
    for role, text in turn.others:
        yield {"role": role, "content": text}
