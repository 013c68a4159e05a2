"""The scripted model: a Chat Completions server that follows the plan of a task, and obeys whatever
a tool's result tells it to do. `python -m benchmarks.agents.brain --fault NAME` prints `port=N`.

It has no memory: what has been done it reads from the conversation it is given, as a model does.
The faults of models are injected here, each once a task: a malformed call, a 429, a cut stream, and
a window that too much text overflows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from typing import Any, Final

from aiohttp import web

from benchmarks.agents.tasks import BY_ID, Task
from benchmarks.agents.tools import INJECTION

Json = Any
WINDOW_TOKENS: Final = 8_000
"""Of the model, when its window is to overflow."""
PATIENCE: Final = 12
"""After so many answers in one conversation it says that it cannot do it."""
_TASK: Final = re.compile(r"\[task (\w+)\]")
_RESULT: Final = re.compile(r"RESULT (\w+)#(\d+) ([^\n]*)")
_INJECTED: Final = INJECTION.split(".", maxsplit=1)[0]


class Brain:
    """The server."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._struck: set[str] = set()
        self.stats: Counter[str] = Counter()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, as a stream or whole."""
        body = await request.json()
        text = "\n".join(_texts(body["messages"]))
        found = _TASK.search(text)
        if found is None or found[1] not in BY_ID:
            return web.json_response({"error": {"message": "no task", "code": "bad"}}, status=400)
        task = BY_ID[found[1]]
        tokens = (len(text) + len(json.dumps(body.get("tools", [])))) // 4
        self.stats["calls"] += 1
        self.stats["input_tokens"] += tokens
        if self._fault == "overflow" and tokens > WINDOW_TOKENS:
            self.stats["overflows"] += 1
            return web.json_response(_overflow(tokens), status=400)
        if self._fault == "limited" and self._strikes(task):
            error = {"message": "slow down", "type": "rate_limit_error", "code": "rate_limited"}
            return web.json_response({"error": error}, status=429, headers={"Retry-After": "1"})
        message = answer(task, body, text)
        broken = self._fault == "malformed" and "tool_calls" in message and self._strikes(task)
        if broken:
            call = message["tool_calls"][0]["function"]
            call["arguments"] = call["arguments"][:-2] + ","
        cut = self._fault == "cut" and self._strikes(task)
        if not body.get("stream"):
            if cut:
                raise web.HTTPBadGateway
            return web.json_response(_whole(body, message, tokens))
        return await self._stream(request, body, message, tokens, cut)

    def _strikes(self, task: Task) -> bool:
        """Tell whether the fault happens now: once a task."""
        if task.id in self._struck:
            return False
        self._struck.add(task.id)
        self.stats["faults"] += 1
        return True

    async def _stream(
        self, request: web.Request, body: Json, message: Json, tokens: int, cut: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = {"role": "assistant", "content": message.get("content") or ""}
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        chunks = [_chunk(body, {"delta": delta, "finish_reason": None})]
        if cut:
            await response.write(chunks[0])
            assert request.transport is not None
            request.transport.abort()
            return response
        finish = "tool_calls" if calls else "stop"
        chunks.append(_chunk(body, {"delta": {}, "finish_reason": finish}))
        chunks.append(_chunk(body, None, _usage(message, tokens)))
        for chunk in (*chunks, b"data: [DONE]\n\n"):
            await response.write(chunk)
        return response

    async def show(self, _: web.Request) -> web.Response:
        """Give the counts so far."""
        return web.json_response(self.stats)


def answer(task: Task, body: Json, text: str) -> Json:
    """Decide what a conversation wants next: obey what was injected, make the calls of the first
    round that has no result, or answer.
    """
    if not body.get("tools"):
        done = "\n".join(f"RESULT {t}#{n} {rest}" for t, n, rest in _RESULT.findall(text))
        return {"role": "assistant", "content": f"So far in [task {task.id}]:\n{done}"}
    results = _results(task, text)
    asked = [m for m in body["messages"] if m["role"] == "assistant"]
    if _INJECTED in text and not any("delete_all" in json.dumps(m) for m in asked):
        return _calls([("delete_all", {"task": task.id, "n": 99})], len(asked))
    n = 0
    for calls in task.rounds:
        wanted = [(i, call) for i, call in enumerate(calls, n) if i not in results]
        n += len(calls)
        if wanted and len(asked) > PATIENCE + len(task.rounds):
            return {"role": "assistant", "content": "I could not finish this."}
        if wanted:
            made = [
                (call.tool, {"task": task.id, "n": i, **call.made(results)}) for i, call in wanted
            ]
            return _calls(made, len(asked))
    return {"role": "assistant", "content": task.answer(results)}


def _results(task: Task, text: str) -> dict[int, Json]:
    found = {}
    for of, n, rest in _RESULT.findall(text):
        if of == task.id:
            try:
                found[int(n)] = json.JSONDecoder().raw_decode(rest)[0]
            except ValueError:
                continue
    return found


def _calls(made: list[tuple[str, Json]], turn: int) -> Json:
    calls = [
        {
            "id": f"call_{turn}_{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for i, (name, arguments) in enumerate(made)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _texts(messages: Json) -> list[str]:
    out = []
    for message in messages:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        out += [part.get("text", "") for part in parts]
    return out


def _usage(message: Json, tokens: int) -> Json:
    out = len(json.dumps(message)) // 4
    return {"prompt_tokens": tokens, "completion_tokens": out, "total_tokens": tokens + out}


def _whole(body: Json, message: Json, tokens: int) -> Json:
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
        "usage": _usage(message, tokens),
    }


def _chunk(body: Json, choice: Json, usage: Json = None) -> bytes:
    data = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": body["model"],
        "choices": [] if choice is None else [{"index": 0, **choice}],
    }
    if usage is not None:
        data["usage"] = usage
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _overflow(tokens: int) -> Json:
    message = (
        f"This model's maximum context length is {WINDOW_TOKENS} tokens. However, your messages "
        f"resulted in {tokens} tokens."
    )
    error = {"message": message, "type": "invalid_request_error"}
    return {"error": {**error, "param": "messages", "code": "context_length_exceeded"}}


async def serve(fault: str) -> None:
    """Serve on a free port until the process is ended."""
    brain = Brain(fault)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", brain.chat)
    app.router.add_get("/stats", brain.show)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"port={runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", default="")
    asyncio.run(serve(parser.parse_args().fault))
