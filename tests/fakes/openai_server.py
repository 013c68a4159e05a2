"""A small real server that speaks Chat Completions: for tests, and for benchmarks in a process of
its own.

In a test: `async with FakeOpenAI() as server:` then `server.answers.append(Answer(...))`; a request
takes the first declared answer, or `server.default`. From a shell: `python -m
tests.fakes.openai_server --port 0 --delay 2` prints `port=N`; `GET /stats` tells the calls seen,
`POST /answers` queues a JSON list of answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Self

from aiohttp import web

from tests.fakes.rate_gate import SENT, RateGate

Json = Any


@dataclass(frozen=True)
class Answer:
    """What one request gets. Without further words: `pieces` as a stream, then finish, usage and
    `[DONE]`.
    """

    pieces: tuple[str, ...] = ("Hello", " there", ".")
    tools: tuple[tuple[str, str], ...] = ()
    """(name, argument text) of each tool call."""
    delay_s: float = 0.0
    """Time of the whole answer, spread between its pieces."""
    first_token_delay_s: float = 0.0
    """Silence after the headers."""
    header_delay_s: float = 0.0
    finish: str | None = None
    """None: `tool_calls` or `stop`, whichever fits."""
    usage: bool = True
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Json = None
    """Sent with `status` instead of an answer: JSON, or bytes as they are."""
    raw: tuple[bytes, ...] | None = None
    """These bytes as the stream, each written by itself."""
    cut_after: int | None = None
    """Drop the connection after so many pieces."""
    error_after: tuple[int, Json] | None = None
    """After so many pieces send this error event, then end."""
    hold_open_s: float = 0.0
    """Keep the connection open after `[DONE]`."""
    stall_after: int | None = None
    """After so many pieces say nothing more for a minute."""


class FakeOpenAI:
    """The server; counts what it sees."""

    def __init__(
        self,
        default: Answer | None = None,
        *,
        limit_every: int = 0,
        gate: RateGate | None = None,
    ) -> None:
        self.default = default or Answer()
        self.answers: deque[Answer] = deque()
        self.limit_every = limit_every
        self.gate = gate
        self.requests: list[Json] = []
        self.keep_requests = True
        self.calls = 0
        self.open = 0
        self.max_open = 0
        self.dropped = 0
        """Calls that the client left before their end."""
        self.connections: set[object] = set()
        self.connection_count = 0
        self.port = 0
        self.idle = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/stats", self._stats)
        app.router.add_post("/answers", self._answers)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=75.0,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=8192)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "calls": self.calls,
                "open": self.open,
                "max_open": self.max_open,
                "dropped": self.dropped,
                "connections": self.connection_count,
                "gate": self.gate.report() if self.gate else None,
            }
        )

    async def _answers(self, request: web.Request) -> web.Response:
        for item in await request.json():
            for name in ("pieces", "tools"):
                if name in item:
                    item[name] = tuple(tuple(x) if isinstance(x, list) else x for x in item[name])
            self.answers.append(Answer(**item))
        return web.json_response({"queued": len(self.answers)})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.calls += 1
        self.open += 1
        self.idle.clear()
        self.max_open = max(self.max_open, self.open)
        if self.keep_requests:
            self.requests.append({"headers": dict(request.headers), "body": body})
            if request.transport not in self.connections:
                self.connections.add(request.transport)
                self.connection_count += 1
        try:
            return await self._answer(request, body, self._next(request))
        except (asyncio.CancelledError, ConnectionError):
            self.dropped += 1
            raise
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()

    def _next(self, request: web.Request) -> Answer:
        if self.gate is not None:
            sent = request.headers.get(SENT)
            refused = self.gate.admit(float(sent) if sent else None)
            if refused is not None:
                return refusal(429, "Rate limit reached", kind="requests", headers=refused)
            return replace(self.default, headers=self.gate.rate_headers())
        if self.limit_every and self.calls % self.limit_every == 0:
            return refusal(429, "slow down", headers={"Retry-After": "1"})
        return self.answers.popleft() if self.answers else self.default

    async def _answer(self, request: web.Request, body: Json, answer: Answer) -> web.StreamResponse:
        if answer.header_delay_s:
            await asyncio.sleep(answer.header_delay_s)
        if answer.body is not None:
            raw = (
                answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            )
            headers = {"content-type": "application/json", **answer.headers}
            return web.Response(status=answer.status, headers=headers, body=raw)
        if not body.get("stream"):
            if answer.delay_s:
                await asyncio.sleep(answer.delay_s)
            return web.json_response(whole(answer, body["model"]), headers=answer.headers)
        response = web.StreamResponse(
            status=answer.status,
            headers={
                "content-type": "text/event-stream",
                "x-request-id": f"req_{self.calls}",
                **answer.headers,
            },
        )
        await response.prepare(request)
        if answer.first_token_delay_s:
            await asyncio.sleep(answer.first_token_delay_s)
        if answer.raw is not None:
            await self._write_raw(response, answer.raw)
        else:
            await self._write_pieces(request, response, answer, body)
        if answer.hold_open_s:
            await asyncio.sleep(answer.hold_open_s)
        return response

    async def _write_raw(self, response: web.StreamResponse, raw: tuple[bytes, ...]) -> None:
        for part in raw:
            await response.write(part)
            await asyncio.sleep(0)

    async def _write_pieces(
        self, request: web.Request, response: web.StreamResponse, answer: Answer, body: Json
    ) -> None:
        events = [chunk({"content": piece}, model=body["model"]) for piece in answer.pieces]
        events += [
            chunk(
                {"tool_calls": [tool_delta(i, f"call_{i}", name, arguments)]}, model=body["model"]
            )
            for i, (name, arguments) in enumerate(answer.tools)
        ]
        await response.write(sse(chunk({"role": "assistant", "content": ""}, model=body["model"])))
        pause_s = answer.delay_s / max(len(events), 1)
        for number, event in enumerate(events):
            if pause_s:
                await asyncio.sleep(pause_s)
            if answer.stall_after == number:
                await asyncio.sleep(60)
            if answer.cut_after == number:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError
            if answer.error_after is not None and answer.error_after[0] == number:
                await response.write(sse(answer.error_after[1]))
                return
            await response.write(sse(event))
        finish = answer.finish or ("tool_calls" if answer.tools else "stop")
        tail = sse(chunk({}, finish=finish, model=body["model"]))
        if answer.usage and (body.get("stream_options") or {}).get("include_usage"):
            tail += sse(usage_chunk(model=body["model"]))
        await response.write(tail + b"data: [DONE]\n\n")


USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 5,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def sse(event: Json) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def chunk(delta: Json, *, finish: str | None = None, model: str = "fake") -> Json:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage_chunk(usage: Json = None, *, model: str = "fake") -> Json:
    return {**chunk({}, model=model), "choices": [], "usage": usage or USAGE}


def tool_delta(index: int | None, use_id: str | None, name: str | None, arguments: Json) -> Json:
    function: dict[str, Json] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    delta: dict[str, Json] = {"function": function, "type": "function"}
    if index is not None:
        delta["index"] = index
    if use_id is not None:
        delta["id"] = use_id
    return delta


def whole(answer: Answer, model: str) -> Json:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(answer.tools)
    ]
    message: dict[str, Json] = {"role": "assistant", "content": "".join(answer.pieces) or None}
    if calls:
        message["tool_calls"] = calls
    finish = answer.finish or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }


def refusal(
    status: int,
    message: str,
    *,
    code: str | int | None = None,
    kind: str | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Build an answer of an error status in OpenAI's form."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Answer(status=status, body={"error": error}, headers=headers or {})


async def _serve(args: argparse.Namespace) -> None:
    pieces = tuple(f"{word} " for word in args.text.split()) or ("",)
    gate = None
    if args.burst is not None:
        gate = RateGate(args.per_s, args.burst, pause_s=args.pause, notice_s=args.notice)
    server = FakeOpenAI(
        Answer(pieces=pieces, delay_s=args.delay), limit_every=args.limit_every, gate=gate
    )
    server.keep_requests = False
    await server.start(args.port)
    print(f"port={server.port}", flush=True)  # noqa: T201
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await stop.wait()
    await server.stop()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="A fake Chat Completions server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds of one answer")
    parser.add_argument("--text", default="one two three four five")
    parser.add_argument("--limit-every", type=int, default=0, help="every Nth call gets a 429")
    parser.add_argument("--burst", type=float, help="calls of a bucket; sets a rate limit")
    parser.add_argument("--per-s", type=float, default=1.0, help="calls a second of the bucket")
    parser.add_argument("--pause", type=float, help="Retry-After of its refusals, in seconds")
    parser.add_argument("--notice", type=float, default=1.0, help="seconds until a refusal counts")
    args = parser.parse_args()
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(args))
    else:
        uvloop.run(_serve(args))


if __name__ == "__main__":
    main()
