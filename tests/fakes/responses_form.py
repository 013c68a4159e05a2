"""What a server of OpenAI's Responses API says: events and whole responses, as the fake server
sends them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Json = Any

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 25,
}


def event(kind: str, **fields: Json) -> bytes:
    """Write one event as OpenAI does: with its name before its data."""
    data = json.dumps({"type": kind, "sequence_number": 0, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def text_item(text: str, item_id: str = "msg_1", **more: Json) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message", "id": item_id, "role": "assistant", "status": "completed",
        "content": [part], **more,
    }  # fmt: skip


def refusal_item(text: str) -> Json:
    part = {"type": "refusal", "refusal": text}
    return {**text_item(""), "content": [part]}


def call_item(number: int, name: str, arguments: str, call_id: str | None = None) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}" if call_id is None else call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def reasoning_item(number: int = 1, encrypted: str | None = "gAAAA", **more: Json) -> Json:
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], **more}
    return item if encrypted is None else {**item, "encrypted_content": encrypted}


def response(output: Sequence[Json] = (), *, status: str = "completed", **more: Json) -> Json:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "fake",
        "output": list(output),
        "usage": USAGE,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **more,
    }


def created(**more: Json) -> bytes:
    return event("response.created", response=response(status="in_progress", usage=None, **more))


def ended(output: Sequence[Json], **more: Json) -> bytes:
    """Write the last event of a response."""
    whole = response(output, **more)
    return event(f"response.{whole['status']}", response=whole)


def streamed_text(index: int, pieces: Iterable[str]) -> list[bytes]:
    """Write the events of one message, piece by piece."""
    pieces = tuple(pieces)
    item = text_item("".join(pieces))
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    empty = {**item, "content": [], "status": "in_progress"}
    return [
        event("response.output_item.added", output_index=index, item=empty),
        event("response.content_part.added", **place, part={"type": "output_text", "text": ""}),
        *(event("response.output_text.delta", **place, delta=piece) for piece in pieces),
        event("response.output_text.done", **place, text="".join(pieces)),
        event("response.content_part.done", **place, part=item["content"][0]),
        event("response.output_item.done", output_index=index, item=item),
    ]


def streamed_call(index: int, item: Json, size: int = 4) -> list[bytes]:
    """Write the events of one function call, its arguments in pieces of `size`."""
    arguments = item["arguments"]
    place = {"item_id": item["id"], "output_index": index}
    empty = {**item, "arguments": "", "status": "in_progress"}
    kind = "response.function_call_arguments"
    return [
        event("response.output_item.added", output_index=index, item=empty),
        *(
            event(f"{kind}.delta", **place, delta=arguments[at : at + size])
            for at in range(0, len(arguments), size)
        ),
        event(f"{kind}.done", **place, arguments=arguments, name=item["name"]),
        event("response.output_item.done", output_index=index, item=item),
    ]
