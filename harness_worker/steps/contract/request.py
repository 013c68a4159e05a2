"""What a model is asked for under the contract: the words about the form, and the conversation as
text where the model has no tool calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness_common.contracts.action import action_prompt, action_schema
from harness_common.contracts.model import ChatRequest
from harness_common.contracts.output import compact, output_prompt
from harness_common.core.hints import HINT
from harness_common.core.message import Block, Message, Text, ToolResult
from harness_worker.steps.contract.terms import Terms


def contracted(request: ChatRequest, terms: Terms) -> ChatRequest:
    """Return the request with what the contract asks for."""
    if terms.by_actions:
        return replace(
            request,
            system=_joined(request.system, action_prompt(request.tools)),
            messages=tuple(as_text(request.messages)),
            tools=(),
            tool_choice=None,
            answer_schema=action_schema([t.name for t in request.tools]),
        )
    if terms.answering:
        request = replace(
            request, messages=tuple(as_text(request.messages)), tools=(), tool_choice=None
        )
    if terms.output_schema is None:
        return request
    return replace(
        request,
        system=_joined(request.system, output_prompt(terms.output_schema)),
        # Servers that hold a model to a schema let it ask for no tool meanwhile.
        answer_schema=None if request.tools else terms.output_schema,
    )


def as_text(messages: Iterable[Message]) -> Iterator[Message]:
    """Write a conversation without tool calls: what the model said literally, results as words."""
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant" and message.has_tool_uses():
            names = {use.id: use.name for use in message.tool_uses()}
            yield replace(message, content=(Text(message.text() or _asked(message)),))
        elif any(isinstance(b, ToolResult) for b in message.content):
            content = tuple(_results(message.content, names))
            yield replace(message, role="user", content=content, extra=HINT)
        else:
            yield message


def _asked(message: Message) -> str:
    calls = [
        {"action": {"name": u.name, "input": u.input, "confidence": 1}} for u in message.tool_uses()
    ]
    return "\n".join(compact(call) for call in calls)


def _results(content: Iterable[Block], names: dict[str, str]) -> Iterator[Block]:
    for block in content:
        if isinstance(block, ToolResult):
            name = names.get(block.tool_use_id, "an action")
            what = f"failed ({block.error_type})" if block.is_error else "gave"
            yield Text(f"{name} {what}:\n{block.content}\n")
        else:
            yield block


def _joined(system: str, words: str) -> str:
    return f"{system}\n\n{words}" if system else words
