"""A worker's and a scheduler's parts over a real Postgres, with fakes for whatever else they
touch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
from redis.asyncio import Redis

from harness_common.batch import Batcher
from harness_common.broker.publish import Doorbell
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, OnDelta, Usage
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.coord.redis import connect
from harness_common.core.message import Message, Text
from harness_common.embedded import EmbeddedValkey
from harness_common.settings import RedisSettings, Settings, WorkerSettings
from harness_common.store.apply import group_commit
from harness_common.store.claim import claim
from harness_common.store.db import Database
from harness_common.store.secret_values import TenantSecrets
from harness_worker.heartbeat import heartbeat_loop
from harness_worker.runtime import Held, PgClock, Runtime, register
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Shared
from harness_worker.steps.context import StepContext
from harness_worker.throttles import Throttles
from harness_worker.tools.breakers import Breakers
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry
from tests.fakes.cut_proxy import CutProxy
from tests.store.play import Play

NOBODY = "redis://127.0.0.1:1/0"
"""A Redis that refuses every connection."""

Chat = Callable[[ChatRequest], Awaitable[None]]


class FakeLeases:
    """Gives every lease to whoever asks."""

    async def take(self, run_id: UUID, owner: str) -> bool:
        del run_id, owner
        return True

    async def release(self, run_id: UUID, owner: str) -> None:
        del run_id, owner

    async def holders(self, run_ids: list[UUID]) -> dict[UUID, UUID]:
        del run_ids
        return {}

    async def break_lease(self, run_id: UUID, worker: UUID) -> None:
        del run_id, worker


class FakeLive:
    """A live stream that nobody watches."""

    def emit(self, run_id: UUID, event: dict[str, Any]) -> None:
        del run_id, event

    def delta(self, run_id: UUID, step: int, text: str, at: int = 0, again: int = 0) -> None:
        del run_id, step, text, at, again

    def nudge(self) -> None:
        pass


class FakeBell:
    """Keeps what was rung."""

    def __init__(self) -> None:
        self.rung: list[Doorbell] = []
        self.lost = 0
        self.works = True
        self.renewed = 0

    def ring(self, bell: Doorbell) -> None:
        self.rung.append(bell)


class FakeModels:
    """A registry whose every model does what `chat` does, and then answers "x"."""

    capabilities = Capabilities(streaming=False)
    provider = "fake"
    scope = "fake:x:none"

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.usage = Usage()

    def get(self, name: str) -> FakeModels:
        del name
        return self

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        del on_delta
        await self._chat(request)
        return ChatResult(Message("assistant", (Text("x"),)), self.usage, "stop", "fake/x")


async def say_nothing(request: ChatRequest) -> None:
    """Do nothing before the model's answer."""
    del request


async def make_runtime(
    db: Database, *, chat: Chat = say_nothing, tools: Iterable[Tool] = ()
) -> Runtime:
    """Make a registered worker that beats every 0.3 s; `chat` and `tools` are what its steps do."""
    settings = Settings(worker=WorkerSettings(lease_s=3, renew_s=0.3))
    worker = uuid4()
    unused: Any = None
    leases: Any = FakeLeases()
    live: Any = FakeLive()
    bell: Any = FakeBell()
    models: Any = FakeModels(chat)
    clock = PgClock()
    runtime = Runtime(
        settings=settings,
        worker=worker,
        name="w",
        db=db,
        heart=db,
        redis=unused,
        leases=leases,
        channel=unused,
        live=live,
        bell=bell,
        http=unused,
        models=models,
        catalog=Catalog(ToolRegistry(tools)),
        blobs=unused,
        claims=Batcher(partial(claim, db, worker=worker, hold_s=900), alone_on=(psycopg.Error,)),
        commits=group_commit(db),
        throttles=Throttles(db, None, clock.now),
        breakers=Breakers(db, None, clock.now, settings.tool),
        secrets=TenantSecrets(db),
        clock=clock,
    )
    runtime.clock.set(await register(db, settings, worker, "w"))
    return runtime


async def make_shared(
    db: Database, *, redis: Redis | None = None, settings: Settings | None = None
) -> Shared:
    """Become leader and make what the scheduler's loops share; without `redis`, Redis is down."""
    term = await Leadership(db, uuid4(), "t", 60).seek()
    assert term is not None
    leases: Any = FakeLeases()
    bell: Any = FakeBell()
    return Shared(
        settings or Settings(), db, redis or connect(NOBODY, RedisSettings()), leases, bell, term
    )


def make_tool(name: str, effect: EffectClass, fn: Callable[..., Any]) -> Tool:
    """Make a tool that takes the arguments of the calls in `play.say`."""
    schema = {"type": "object", "properties": {"i": {"type": "integer"}}}
    return Tool(ToolSpec(name, "A tool of a test.", schema, effect), fn)


async def claim_tools_step(runtime: Runtime, play: Play, run_id: UUID) -> StepContext:
    """Claim a run for the worker and make the context of its tools step; every tool is allowed."""
    version = (await play.read(run_id)).version
    claimed = await play.try_claim(run_id, version, runtime.worker)
    assert claimed is not None
    assert claimed.run.claim_id is not None
    held = Held(play.tenant_id, run_id, "lease", claimed.run.claim_id)
    return StepContext(
        run=claimed.run,
        spec=AgentSpec(tools=runtime.catalog.local.names()),
        history=(),
        messages=claimed.messages,
        calls=claimed.calls,
        started_at=claimed.now,
        runtime=runtime,
        held=held,
    )


@contextlib.asynccontextmanager
async def beating(runtime: Runtime) -> AsyncIterator[asyncio.Task[None]]:
    """Let a worker's heart beat; the task ends with the block."""
    task = asyncio.create_task(heartbeat_loop(runtime))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def proxy_of(valkey: EmbeddedValkey) -> CutProxy:
    """Make a proxy in front of a Valkey."""
    parts = urlsplit(valkey.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return CutProxy(parts.hostname, parts.port)


def url_through(proxy: CutProxy, valkey: EmbeddedValkey) -> str:
    """Return the URL of a Valkey behind a proxy."""
    return valkey.url.replace(f":{urlsplit(valkey.url).port}", f":{proxy.port}")
