"""Runs whose model is a real server on this machine that counts tokens and refuses what is too
long, for tests of what it is sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.context_summary import INSTRUCTIONS
from harness_common.core.run import TERMINAL
from harness_common.settings import Settings
from harness_common.store import json_codec
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_worker.advance import answer
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import Runtime
from tests.fakes.openai_server import Answer, FakeOpenAI, refusal
from tests.store.play import Play, make_key, sql
from tests.worker.runtime import make_runtime, make_tool

SUMMARY = (
    "Intent:\n- count the cars\nDone:\n- looked at many pages\n"
    "To do:\n- go on\nConstraints:\n- never guess"
)
_ASKED = INSTRUCTIONS[:40]


class CountingServer(FakeOpenAI):
    """Asks for the tool `look` until `turns` are over, summarises when it is asked to, and refuses
    a prompt of more than `window_tokens` (three bytes to a token).
    """

    def __init__(self, turns: int, *, window_tokens: int = 10**9, summary: str = SUMMARY) -> None:
        super().__init__()
        self.turns, self.window_tokens, self.summary = turns, window_tokens, summary
        self.answered = 0
        self.arguments: Callable[[int], Any] = lambda n: {"i": n}
        self.said: Callable[[int], str] = lambda n: f"Look {n}."

    @property
    def bodies(self) -> list[Any]:
        """What the agent's own requests were; refused ones too."""
        return [r["body"] for r in self.requests if not is_summary_request(r["body"])]

    @property
    def summary_bodies(self) -> list[Any]:
        return [r["body"] for r in self.requests if is_summary_request(r["body"])]

    def _next(self, request: Any) -> Answer:
        body = self.requests[-1]["body"]
        if size_of(body) > self.window_tokens:
            return refusal(400, "maximum context length", code="context_length_exceeded")
        if is_summary_request(body):
            return Answer(pieces=(self.summary,), usage=False)
        self.answered += 1
        if self.answered >= self.turns:
            return Answer(pieces=("All done.",), usage=False)
        arguments = json.dumps(self.arguments(self.answered))
        return Answer(pieces=(self.said(self.answered),), tools=(("look", arguments),), usage=False)


def is_summary_request(body: Any) -> bool:
    return str(body["messages"][0]["content"]).startswith(_ASKED)


def size_of(body: Any) -> int:
    """Count tokens as the server does."""
    return len(json.dumps([body["messages"], body.get("tools")]).encode()) // 3


@dataclass
class Bench:
    """One tenant's runs and the worker that makes them."""

    db: Database
    play: Play
    runtime: Runtime
    server: CountingServer
    key: str
    results: list[int] = field(default_factory=list)

    async def agent(self, **spec: Any) -> None:
        """Change the agent `a`."""
        made = AgentSpec(
            **{
                "model": "openai/m", "system": "You count cars.", "tools": ("look",),
                "max_turns": 10_000, "max_output_tokens": 100, **spec,
            }
        )  # fmt: skip
        await sql(
            self.db,
            "UPDATE agents SET spec = cast(:s AS jsonb) WHERE tenant_id = :t",
            s=json_codec.dumps_text(made.model_dump(mode="json")),
            t=self.play.tenant_id,
        )
        self.runtime._agents.clear()

    async def start(self, input: str = "Count the cars. Never guess.", **more: Any) -> UUID:
        return await self.play.start(input, created_by=self.key, **more)

    async def drive(self, run_id: UUID, *, steps: int | None = None) -> StoredRun:
        """Answer doorbells until the run is over, or until it has made so many steps."""
        while True:
            run = await self.play.read(run_id)
            if run.state.status in TERMINAL or (steps is not None and run.state.step >= steps):
                return run
            told = await answer(self.runtime, self.play.tenant_id, run_id, run.version)
            assert told not in {"nothing to do", "lease held", "lost ownership"}, told

    async def run(self, input: str = "Count the cars. Never guess.", **more: Any) -> StoredRun:
        return await self.drive(await self.start(input, **more))

    async def payloads(self, run_id: UUID, kind: str) -> list[Any]:
        return [e["payload"] for e in await self.play.events(run_id) if e["type"] == kind]


def look_tool(size: int = 400) -> Tool:
    """A read tool with a result of about `size` bytes, different for each argument."""

    async def look(ctx: Any, i: int = 0) -> str:
        del ctx
        return f"page {i}: " + "cars and more cars, " * (size // 20)

    return make_tool("look", EffectClass.READ, look)


@asynccontextmanager
async def open_bench(
    db: Database, play: Play, server: CountingServer, *tools: Tool
) -> AsyncIterator[Bench]:
    runtime = await make_runtime(db, tools=tools or (look_tool(),))
    async with server, httpx.AsyncClient() as client:
        settings = Settings(openai_base_url=server.base_url)
        runtime.models = ModelRegistry(settings, client)
        yield Bench(db, play, runtime, server, await make_key(db, play.tenant_id))
