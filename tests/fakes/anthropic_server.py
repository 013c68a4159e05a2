"""A small real server that speaks the Messages API and holds its clients to the rules of it.

Used like `FakeOpenAI`. A request that breaks a rule of the API is answered with 400 and the reason,
which the mock servers of others do not do: see `broken_rule`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.fakes.openai_server import Answer, FakeOpenAI

Json = Any
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 6,
    "cache_read_input_tokens": 4,
    "output_tokens": 1,
}
SAMPLING = ("temperature", "top_p", "top_k")


class FakeAnthropic(FakeOpenAI):
    """The server."""

    strict = True
    """Answer what breaks a rule with 400."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/messages", self._chat)
        app.router.add_get("/stats", self._stats)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request, body: Json, answer: Answer) -> web.StreamResponse:
        if self.strict and (rule := broken_rule(body, dict(request.headers))):
            error = {"type": "invalid_request_error", "message": rule}
            return web.json_response({"type": "error", "error": error}, status=400)
        if answer.body is None and not body.get("stream"):
            return web.json_response(whole(answer, body["model"]), headers=answer.headers)
        return await super()._answer(request, body, answer)

    async def _write_pieces(
        self, request: web.Request, response: web.StreamResponse, answer: Answer, body: Json
    ) -> None:
        beginning, pieces, ending = events_of(answer, body["model"])
        await response.write(beginning)
        for number, part in enumerate([*pieces, ending]):
            if answer.stall_after == number:
                await asyncio.sleep(60)
            if answer.cut_after == number:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError
            if answer.error_after is not None and answer.error_after[0] == number:
                await response.write(event("error", answer.error_after[1]))
                return
            await response.write(part)


def event(kind: str, fields: Json) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


def head(model: str = "fake", usage: Json = None) -> bytes:
    message: Json = {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": model,
        "stop_reason": None, "stop_sequence": None, "usage": usage or USAGE,
    }  # fmt: skip
    return event("message_start", {"message": message})


def start(index: int, block: Json) -> bytes:
    return event("content_block_start", {"index": index, "content_block": block})


def delta(index: int, kind: str, **fields: Json) -> bytes:
    return event("content_block_delta", {"index": index, "delta": {"type": kind, **fields}})


def text_delta(index: int, text: str) -> bytes:
    return delta(index, "text_delta", text=text)


def stop(index: int) -> bytes:
    return event("content_block_stop", {"index": index})


def end(reason: str = "end_turn", usage: Json = None, **more: Json) -> bytes:
    fields = {"stop_reason": reason, "stop_sequence": None, **more}
    counts = {"usage": usage or {"output_tokens": 5}}
    return event("message_delta", {"delta": fields, **counts}) + event("message_stop", {})


def tool_use(index: int, name: str, *arguments: str, use_id: str | None = None) -> bytes:
    use_id = f"toolu_{index}" if use_id is None else use_id
    begun = start(index, {"type": "tool_use", "id": use_id, "name": name, "input": {}})
    grown = (delta(index, "input_json_delta", partial_json=a) for a in arguments)
    return begun + b"".join(grown) + stop(index)


def thinking(index: int, text: str, signature: str) -> bytes:
    begun = start(index, {"type": "thinking", "thinking": "", "signature": ""})
    said = delta(index, "thinking_delta", thinking=text) if text else b""
    return begun + said + delta(index, "signature_delta", signature=signature) + stop(index)


def events_of(answer: Answer, model: str) -> tuple[bytes, list[bytes], bytes]:
    """Return the beginning, the pieces and the end of an answer's stream."""
    beginning, pieces, ending = head(model), [], b""
    if answer.pieces:
        beginning += start(0, {"type": "text", "text": ""}) + event("ping", {})
        pieces = [text_delta(0, piece) for piece in answer.pieces]
        ending = stop(0)
    for index, (name, arguments) in enumerate(answer.tools, 1):
        ending += tool_use(index, name, arguments)
    reason = answer.finish or ("tool_use" if answer.tools else "end_turn")
    return beginning, pieces, ending + end(reason)


def whole(answer: Answer, model: str) -> Json:
    """Write an answer in one piece."""
    content: list[Json] = []
    if answer.pieces:
        content.append({"type": "text", "text": "".join(answer.pieces)})
    content += [
        {"type": "tool_use", "id": f"toolu_{i}", "name": name, "input": json.loads(arguments)}
        for i, (name, arguments) in enumerate(answer.tools, 1)
    ]
    reason = answer.finish or ("tool_use" if answer.tools else "end_turn")
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": {**USAGE, "output_tokens": 5},
    }  # fmt: skip


def broken_rule(body: Json, headers: dict[str, str]) -> str | None:
    """Name the rule of the API that a request breaks, in the words of the API where known."""
    version = headers.get("anthropic-version", "")
    if not version:
        return "anthropic-version: header is required"
    if version >= "2026-10-21":
        for name in SAMPLING:
            if name in body:
                return f"{name}: Extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    return _broken_turns(body["messages"]) or _broken_thinking(body)


def _broken_turns(messages: list[Json]) -> str | None:
    seen: set[str] = set()
    asked: list[str] = []
    if not messages or messages[0]["role"] != "user":
        return "messages: first message must use the user role"
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if broken := _broken_content(content, asked):
            return f"messages.{number}: {broken}"
        asked = [b["id"] for b in content if b["type"] == "tool_use"]
        if seen & {*asked} or len({*asked}) != len(asked):
            return f"messages.{number}: `tool_use` ids must be unique"
        seen |= {*asked}
    if asked:
        return f"`tool_use` ids were found without `tool_result` blocks: {asked}"
    return None


def _broken_content(content: list[Json], asked: list[str]) -> str | None:
    results = [b for b in content if b["type"] == "tool_result"]
    ids = [b["tool_use_id"] for b in results]
    if not content:
        return "content must be non-empty"
    if content[: len(results)] != results:
        return "tool_result blocks must come first"
    if sorted(ids) != sorted(asked):
        return f"tool_use ids {asked} were answered by {ids}"
    if any(b["type"] == "text" and not b["text"].strip() for b in content):
        return "text content blocks must contain non-whitespace text"
    return None


def _broken_thinking(body: Json) -> str | None:
    """Reasoning with a budget has to stand before the calls that are answered now."""
    kind = (body.get("thinking") or {}).get("type")
    if isinstance(body["messages"][-1]["content"], str):
        return None
    last = body["messages"][-1]["content"][0]
    if kind == "enabled" and last["type"] == "tool_result":
        first = body["messages"][-2]["content"][0]["type"]
        if first not in {"thinking", "redacted_thinking"}:
            return f"Expected `thinking` or `redacted_thinking`, but found `{first}`."
    return None
