"""A model server that streams as fast as it can, or at a pace: prepared bytes, one write a delta.

A process of its own (`python -m benchmarks.delta_server --deltas 2000 --per-s 0`); prints `port=N`.
Speaks Chat Completions and Responses, and nothing else of HTTP than its reader needs.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import cache
from typing import Final, cast

import orjson
import uvloop

WORDS: Final = ("The ", "quick ", "brown ", "fox", " jumps", " over", " the ", "lazy ", "dög", ". ")


def delta(number: int) -> str:
    """Return the text of a delta; texts of a stream are told apart by their order."""
    return f"{WORDS[number % len(WORDS)]}{number} "


def text_of(deltas: int) -> str:
    """Return the whole answer."""
    return "".join(map(delta, range(deltas)))


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@cache
def _chat(deltas: int) -> list[bytes]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        body = orjson.dumps({**base, "choices": [choice]})
        return _framed(b"data: " + body + b"\n\n")

    usage = {"prompt_tokens": 20, "completion_tokens": deltas, "total_tokens": 20 + deltas}
    last = orjson.dumps({**base, "choices": [], "usage": usage})
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": delta(n)}) for n in range(deltas)),
        chunk({}, "stop"),
        _framed(b"data: " + last + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n",
    ]


@cache
def _responses(deltas: int) -> list[bytes]:
    def event(kind: str, **fields: object) -> bytes:
        body = orjson.dumps({"type": kind, "sequence_number": 1, **fields})
        return _framed(b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n")

    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": text_of(deltas), "annotations": []}
    usage = {"input_tokens": 20, "output_tokens": deltas, "total_tokens": 20 + deltas}
    response = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "bench",
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    started = {**response, "status": "in_progress", "output": []}
    ended = {
        **response, "status": "completed", "output": [{**message, "content": [part]}],
        "usage": usage,
    }  # fmt: skip
    return [
        event("response.created", response=started),
        event("response.output_item.added", output_index=0, item={**message, "content": []}),
        *(event("response.output_text.delta", **place, delta=delta(n)) for n in range(deltas)),
        event("response.completed", response=ended) + b"0\r\n\r\n",
    ]


class _Connection(asyncio.Protocol):
    """One client, whose requests come one after another."""

    def __init__(self, deltas: int, per_s: float) -> None:
        self._deltas = deltas
        self._pause_s = 1 / per_s if per_s else 0.0
        self._buffer = b""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        parts = (_chat if b"/chat/" in head else _responses)(self._deltas)
        self._task = asyncio.create_task(self._answer(parts))

    async def _answer(self, parts: list[bytes]) -> None:
        write = self._transport.write
        write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_1\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        due = loop.time()
        for number, part in enumerate(parts):
            write(part)
            if self._pause_s:
                due += self._pause_s
                await asyncio.sleep(max(due - loop.time(), 0))
            elif number % 16 == 0:
                await asyncio.sleep(0)  # the other streams too
            await self._may_write.wait()


async def _serve(deltas: int, per_s: float) -> None:
    _chat(deltas), _responses(deltas)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(deltas, per_s), "127.0.0.1", 0, backlog=4096
    )
    print(f"port={server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltas", type=int, default=2_000, help="of one answer")
    parser.add_argument("--per-s", type=float, default=0, help="deltas of a stream; 0: no pause")
    args = parser.parse_args()
    uvloop.run(_serve(args.deltas, args.per_s))


if __name__ == "__main__":
    main()
