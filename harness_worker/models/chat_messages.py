"""Write our messages in the form of Chat Completions. Pure.

Used by `openai_chat`. A conversation that breaks the server's rules is answered with 400 for ever,
so this writes only what is accepted: every tool call is followed at once by its answer, arguments
are a JSON object, names are legal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.message import Json, Message, ToolResult, ToolUse
from harness_worker.models.json_out import json_bytes

_ILLEGAL_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NO_RESULT: Final = "Error: this call has no result; it was not carried out or was interrupted."


def chat_messages(request: ChatRequest) -> list[Json]:
    """Return the `messages` of a request, the system text first.

    Text that stands between a tool call and its result moves behind the results; a call without
    result gets one that says so; a result without call becomes user text.
    """
    out: list[Json] = []
    if request.system:
        out.append({"role": "system", "content": request.system})
    for turn in _turns(request.messages):
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


def _turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut the conversation before every assistant message, so that a turn holds all answers to its
    calls.
    """
    turn: list[Message] = []
    for message in messages:
        if message.role == "assistant" and turn:
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _turn(messages: list[Message]) -> Iterator[Json]:
    pending: dict[str, ToolUse] = {}
    if messages[0].role == "assistant":
        first, *messages = messages
        pending = {use.id: use for use in first.tool_uses()}
        yield _assistant(first)
    results: dict[str, Json] = {}
    others: list[Json] = []
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolResult):
                if block.tool_use_id in pending and block.tool_use_id not in results:
                    results[block.tool_use_id] = _tool(block.tool_use_id, _result_text(block))
                else:
                    text = f"Result of an earlier tool call: {_result_text(block)}"
                    others.append({"role": "user", "content": text})
        if text := message.text():
            role = message.role if message.role == "system" else "user"
            others.append({"role": role, "content": text})
    for use_id in pending:
        yield results.get(use_id) or _tool(use_id, _NO_RESULT)
    yield from others


def _assistant(message: Message) -> Json:
    text = message.text()
    uses = message.tool_uses()
    if not uses:
        return {"role": "assistant", "content": text}
    calls = [
        {
            "id": use.id,
            "type": "function",
            "function": {"name": _name(use.name), "arguments": _arguments(use)},
        }
        for use in uses
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _tool(use_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": use_id, "content": text}


def _result_text(result: ToolResult) -> str:
    # The wire has no error flag: the model only knows what the text says.
    if not result.is_error:
        return result.content
    kind = f" ({result.error_type})" if result.error_type else ""
    return f"Error{kind}: {result.content}"


def _name(name: str) -> str:
    return _ILLEGAL_NAME.sub("_", name)[:64] or "unknown"


def _arguments(use: ToolUse) -> str:
    # Chat templates of vLLM and llama.cpp parse this text again and fail on anything but an object.
    value = {"invalid_arguments": use.raw} if use.raw else use.input
    return json_bytes(value).decode()
