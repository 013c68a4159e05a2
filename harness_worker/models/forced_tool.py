"""Force a tool where the server knows no forced tools: by the form of the answer.

llama.cpp takes `tool_choice` and does nothing with it, but keeps an answer to a JSON schema. So the
model is asked for the call as JSON, and what it says becomes the call. Used by the providers of the
OpenAI family for models whose entry says `"tool_choice": "schema"`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, OnDelta, ToolDef
from harness_common.core.message import Json, Message, ToolUse
from harness_worker.models.json_out import json_bytes
from harness_worker.models.tool_args import parse_arguments

Sample = Callable[[ChatRequest, OnDelta | None], Awaitable[ChatResult]]

_ASK: Final = (
    'Answer with one call of a tool as JSON and nothing else: {"name": …, "arguments": {…}}.'
    " The tools:"
)


def forced_by_schema(request: ChatRequest, can: Capabilities) -> ChatRequest | None:
    """Return the request that brings a call by the form of its answer; None when there is no need.

    The tools stand in the system text, since a server that ignores one field may ignore the other.
    """
    choice = request.tool_choice
    if can.tool_choice != "schema" or choice in {None, "auto", "none"} or not request.tools:
        return None
    tools = [t for t in request.tools if choice in {"required", t.name}]
    forms = [_call_schema(tool) for tool in tools]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    lines = [f"- {t.name}: {t.description} {json_bytes(t.input_schema).decode()}" for t in tools]
    format_ = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    return replace(
        request,
        system="\n".join([*([request.system] if request.system else []), _ASK, *lines]),
        tools=(),
        tool_choice=None,
        # The second is llama.cpp's own name, which its Responses API knows too.
        options={**request.options, "response_format": format_, "json_schema": schema},
    )


async def ask_forced(
    sample: Sample, request: ChatRequest, forced: ChatRequest, on_delta: OnDelta | None
) -> ChatResult:
    """Ask what `forced_by_schema` made of `request`. A call is not shown, other words are."""
    result = taken_as_call(await sample(forced, None), request.tools)
    if on_delta is not None and (text := result.message.text()):
        await on_delta(text)
    return result


def taken_as_call(result: ChatResult, tools: Sequence[ToolDef]) -> ChatResult:
    """Return the result with its text as a call; as it was where the text is no call of a tool."""
    value, raw = parse_arguments(result.message.text().strip())
    name, arguments = value.get("name"), value.get("arguments")
    if raw is not None or not isinstance(arguments, dict) or name not in {t.name for t in tools}:
        return result
    use = ToolUse(f"call_{uuid4().hex[:24]}", str(name), arguments)
    return replace(result, message=Message("assistant", (use,)), finish="tool_calls")


def _call_schema(tool: ToolDef) -> Json:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": tool.input_schema},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
