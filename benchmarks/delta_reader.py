"""One process that reads many streams of `delta_server` at once, in one of several ways.

`python -m benchmarks.delta_reader --how chat --port N --redis URL --streams 200 --deltas 2000`
prints one line of JSON. `chat` and `responses` are our providers with every delta published to the
live stream, as a worker does; `sdk-chat` and `sdk-responses` are the official client, which decodes
the same bytes and publishes nothing; `silent` is `chat` without the live stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID, uuid4

import openai
import uvloop
from redis.asyncio import Redis

from benchmarks.delta_server import text_of
from harness_common.contracts.model import ChatRequest
from harness_common.coord.live import LiveStream
from harness_common.core.message import user
from harness_worker.models.http import shared_client
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.openai_responses import OpenAIResponses
from harness_worker.models.prices import load_prices

WAYS: Final = ("chat", "responses", "silent", "sdk-chat", "sdk-responses")
PREFIX: Final = "bench"
Read = Callable[[], Awaitable[str]]


async def _ours(args: argparse.Namespace) -> dict[str, Any]:
    redis = Redis.from_url(args.redis)
    live = LiveStream(redis, PREFIX)
    publishing = asyncio.create_task(live.run())
    kind = OpenAIResponses if args.how == "responses" else OpenAIChat
    async with shared_client() as client:
        url = f"http://127.0.0.1:{args.port}/v1"
        model = kind(client, "bench", prices=load_prices(), base_url=url)
        request = ChatRequest("bench", (user("Go."),), total_timeout_s=600)

        async def read() -> str:
            run_id: UUID = uuid4()

            async def on_delta(text: str) -> None:
                live.delta(run_id, 1, text)

            silent = args.how == "silent"
            result = await model.chat(request, None if silent else on_delta)
            return result.message.text()

        found = await _timed(read, args)
    began = time.monotonic()
    publishing.cancel()
    await asyncio.wait([publishing])
    await live.flush()
    await redis.aclose()
    return {**found, "dropped": live.dropped, "tail_s": time.monotonic() - began}


async def _sdk(args: argparse.Namespace) -> dict[str, Any]:
    url = f"http://127.0.0.1:{args.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as sdk:

        async def chat() -> str:
            pieces: list[str] = []
            async for event in await sdk.chat.completions.create(
                model="bench", messages=[{"role": "user", "content": "Go."}], stream=True
            ):
                pieces += [choice.delta.content or "" for choice in event.choices]
            return "".join(pieces)

        async def responses() -> str:
            stream = await sdk.responses.create(model="bench", input="Go.", stream=True)
            pieces = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            return "".join(pieces)

        return await _timed(chat if args.how == "sdk-chat" else responses, args)


async def _timed(read: Read, args: argparse.Namespace) -> dict[str, Any]:
    """Read all streams at once; the first of them, alone, is to warm up."""
    wanted = text_of(args.deltas)
    assert await read() == wanted
    began, cpu = time.monotonic(), time.process_time()
    texts = await asyncio.gather(*(read() for _ in range(args.streams)))
    return {
        "seconds": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
        "wrong": sum(text != wanted for text in texts),
    }


def main() -> None:
    """Read once and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=WAYS, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--deltas", type=int, default=2_000, help="of one stream, as the server's")
    args = parser.parse_args()
    print(json.dumps(uvloop.run((_sdk if args.how.startswith("sdk") else _ours)(args))))


if __name__ == "__main__":
    main()
