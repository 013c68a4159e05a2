"""What one worker process has while it runs: connections, registries, the runs it holds, its
caches.

Made on the pool's event loop at start; the steps see only a `StepContext`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import httpx
import psycopg
from redis.asyncio import Redis

from harness_common import VERSION
from harness_common.batch import Batcher
from harness_common.blobs.registry import blobs_of
from harness_common.broker.publish import Rings
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.blob import Blobs
from harness_common.contracts.embeddings import Embedder
from harness_common.contracts.skill import equipped, pins_in
from harness_common.contracts.stored import read_stored
from harness_common.coord.channel import Channel
from harness_common.coord.lease import Leases
from harness_common.coord.live import LiveStream
from harness_common.core.budget import FREE, Spent
from harness_common.core.errors import Permanent
from harness_common.core.mcp import wildcards
from harness_common.core.message import Message, message_chars
from harness_common.embeddings.registry import embedder_of
from harness_common.plugins import Loaded, discover
from harness_common.settings import Settings
from harness_common.store import json_codec
from harness_common.store.apply import group_commit
from harness_common.store.claim import Claimed, Tail, Want, claim
from harness_common.store.db import Database
from harness_common.store.policies import PolicyCache
from harness_common.store.rows import StoredRun, row_time
from harness_common.store.secret_values import TenantSecrets
from harness_common.store.skill_pins import SkillCache
from harness_common.store.writes import Applied, Write
from harness_worker.context.memory import ContextMemory
from harness_worker.egress.client import Egress
from harness_worker.ends import Ends, open_ends
from harness_worker.mcp.entry import McpEntry, McpSource, Needs
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from harness_worker.plugins import adopt, merged, told
from harness_worker.sandbox.service import WorkerSandbox
from harness_worker.throttles import Throttles
from harness_worker.tools.announce import announce
from harness_worker.tools.breakers import Breakers
from harness_worker.tools.caged import caged_modules, checked_dial
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.http_tools import TenantTools, rules_of
from harness_worker.tools.registry import ToolRegistry, check_foreign_spec
from harness_worker.tools.threads import ToolThreads

_CACHED_RUNS: Final = 2_000
_CACHED_CHARS: Final = 20_000_000
_CACHED_AGENTS: Final = 500


class PgClock:
    """Postgres time without asking: the last answer plus what the monotonic clock says has passed
    (INV17).
    """

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._mono = 0.0

    def set(self, now: datetime) -> None:
        """Take a fresh reading."""
        self._at, self._mono = now, time.monotonic()

    def now(self) -> datetime:
        """Return the present by Postgres time."""
        if self._at is None:
            raise RuntimeError("Postgres time was never read")
        return self._at + timedelta(seconds=time.monotonic() - self._mono)


@dataclass(slots=True, eq=False)
class Held:
    """A run that this process works on now."""

    tenant_id: UUID
    run_id: UUID
    lease: str
    claim_id: UUID
    leased: bool = False
    """True once the lease is ours: only then is it renewed."""
    task: asyncio.Task[object] | None = None
    cancel_requested: bool = False
    release_asked: bool = False
    writing: int = 0
    """Started writes whose outcome is not recorded yet: they are awaited, not interrupted, when the
    process stops.
    """
    paid: Spent = FREE
    """What answers of models have cost in this attempt at the step that are on record nowhere."""
    kept: Spent = FREE
    """What those of them have cost that are, and that whoever ends the step counts."""

    def begin(self) -> None:
        """Begin an attempt at a step, which has cost nothing yet."""
        self.paid = self.kept = FREE

    def keep(self, spent: Spent) -> None:
        """Note that answers that were paid for are on record."""
        self.paid, self.kept = self.paid - spent, self.kept + spent

    def find(self, spent: Spent) -> None:
        """Note that answers of an earlier attempt at the step were on record."""
        self.kept += spent

    def stop_asked(self) -> bool:
        """Tell whether the step was interrupted on purpose."""
        return self.cancel_requested or self.release_asked

    def cancel(self) -> None:
        """Stop the step now; a write under way becomes unknown."""
        self.cancel_requested = True
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        """Let go of the step because the process stops; a write under way is awaited first."""
        self.release_asked = True
        if self.task is not None and not self.writing:
            self.task.cancel()


@dataclass(slots=True)
class Counters:
    """What the process did, for metrics and the heartbeat."""

    steps: int = 0
    lost_ownership: int = 0
    lease_held: int = 0
    claim_missed: int = 0
    queue_age_s: float = 0.0
    doorbells_lost: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """The messages of a run that are kept, and their size."""

    tail: Tail = field(default_factory=Tail)
    chars: int = 0


_NOTHING: Final = _Known()


@dataclass(slots=True)
class Runtime:
    """The parts of a worker process."""

    settings: Settings
    worker: UUID
    name: str
    db: Database
    heart: Database
    redis: Redis | None
    leases: Leases
    channel: Channel
    live: LiveStream
    bell: Rings
    http: httpx.AsyncClient
    models: ModelRegistry
    catalog: Catalog
    blobs: Blobs
    claims: Batcher[Want, Claimed | None]
    commits: Batcher[Write, Applied | None]
    throttles: Throttles
    breakers: Breakers
    secrets: TenantSecrets
    sandbox: WorkerSandbox | None = None
    mcp: McpSource | None = None
    embedder: Embedder | None = None
    plugins: tuple[Loaded, ...] = ()
    """What is installed beside Harness; `harness_worker.plugins.merged` gives their parts."""
    threads: ToolThreads = field(default_factory=ToolThreads)
    skills: SkillCache = field(default_factory=SkillCache)
    policies: PolicyCache = field(default_factory=PolicyCache)
    clock: PgClock = field(default_factory=PgClock)
    held: dict[UUID, Held] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    stopping: bool = False
    context: ContextMemory = field(default_factory=ContextMemory)
    _cached_chars: int = 0
    _messages: OrderedDict[UUID, _Known] = field(default_factory=OrderedDict)
    _agents: OrderedDict[UUID | tuple[UUID, str, int], AgentSpec] = field(
        default_factory=OrderedDict
    )

    def known(self, run_id: UUID) -> Tail:
        """Return the committed messages of a run that this process has seen, as far as they are
        shown.

        They are append-only, so never stale.
        """
        return self._messages.get(run_id, _NOTHING).tail

    def remember(self, run_id: UUID, messages: tuple[Message, ...], first: int = 1) -> None:
        """Keep a run's committed messages from number `first` on for its next step; the least
        lately used go first.
        """
        known = self._messages.pop(run_id, _NOTHING)
        same = first == known.tail.first
        new = messages[len(known.tail.messages) :] if same else messages
        chars = (known.chars if same else 0) + sum(message_chars(m) for m in new)
        self._cached_chars += chars - known.chars
        self._messages[run_id] = _Known(Tail(messages, first), chars)
        while len(self._messages) > _CACHED_RUNS or self._cached_chars > _CACHED_CHARS:
            _, dropped = self._messages.popitem(last=False)
            self._cached_chars -= dropped.chars

    def forget(self, run_id: UUID) -> None:
        """Drop a run that has ended."""
        self._cached_chars -= self._messages.pop(run_id, _NOTHING).chars

    async def agent(self, run: StoredRun) -> AgentSpec:
        """Return the agent version that a run pinned, or was handed to, for its next step."""
        spec = await self._pinned(run)
        spec = spec.with_overrides(run.overrides) if run.overrides else spec
        spec = spec.with_handoffs()
        if pins := pins_in(run.overrides):
            spec = equipped(spec, await self.skills.load(self.db, run.tenant_id, pins))
        if self.mcp is not None and wildcards(spec.tools):
            # From what is accepted now, at the start of each step.
            names = await self.mcp.expand(run.tenant_id, spec.tools)
            spec = spec.model_copy(update={"tools": names})
        return spec

    async def _pinned(self, run: StoredRun) -> AgentSpec:
        """Read an agent version; versions never change, so they are kept."""
        acting, tenant_id = run.acting, run.tenant_id
        key = (tenant_id, acting.name, acting.version) if acting.hops else run.agent_id
        spec = self._agents.get(key)
        if spec is None:
            wanted = {"name": acting.name, "version": acting.version}
            row = (
                await self.db.fetch_one("agent_version", {"tenant_id": tenant_id, **wanted})
                if acting.hops
                else await self.db.fetch_one(
                    "agent_read", {"tenant_id": tenant_id, "agent_id": run.agent_id}
                )
            )
            if row is None:
                raise Permanent("the run's agent version is gone", code="AGENT_NOT_FOUND")
            spec = read_stored(AgentSpec, row["spec"], f"the agent {acting.name!r}")
            self._agents[key] = spec
            if len(self._agents) > _CACHED_AGENTS:
                self._agents.popitem(last=False)
        return spec


async def register(
    db: Database, settings: Settings, worker: UUID, name: str, plugins: Sequence[Loaded] = ()
) -> datetime:
    """Announce a worker process; returns Postgres time. Safe to repeat."""
    row = await db.fetch_one(
        "worker_register",
        {
            "worker": worker,
            "name": name,
            "host": platform.node(),
            "pid": os.getpid(),
            "queues": list(settings.worker.queues),
            "concurrency": settings.worker.concurrency,
            "version": VERSION,
            "plugins": json_codec.dumps_text(told(plugins)),
        },
    )
    assert row is not None
    return row_time(row)


async def open_runtime(settings: Settings, bell: Rings, name: str) -> Runtime:
    """Connect to everything; waits for Postgres, does not need Redis to be there yet."""
    worker = (
        UUID(os.environ["HARNESS_INCARNATION"]) if "HARNESS_INCARNATION" in os.environ else uuid4()
    )
    ends = await open_ends(settings, bell, worker, name)
    runtime = make_runtime(settings, ends, worker, name)
    await start_runtime(runtime)
    assert runtime.sandbox is not None
    runtime.sandbox.start_in_background()
    return runtime


def make_runtime(settings: Settings, ends: Ends, worker: UUID, name: str) -> Runtime:
    """Build the parts of a worker process on these ends."""
    db, http, clock = ends.db, shared_client(), PgClock()
    egress = Egress(settings, partial(rules_of, db))
    registry = ToolRegistry.from_settings(settings, egress)
    plugins = adopt(discover(settings.plugins), registry)
    secrets = TenantSecrets(db, cache_s=settings.secrets.cache_s)
    mcp = mcp_source(settings, db, egress, secrets)
    return Runtime(
        settings=settings,
        worker=worker,
        name=name,
        db=db,
        heart=ends.heart,
        redis=ends.redis,
        leases=ends.leases,
        channel=ends.channel,
        live=ends.live,
        bell=ends.bell,
        http=http,
        models=ModelRegistry(settings, http, merged(plugins, "providers")),
        catalog=Catalog(registry, [TenantTools(db, egress, secrets), mcp]),
        mcp=mcp,
        plugins=plugins,
        embedder=embedder_of(settings, http),
        blobs=blobs_of(settings),
        claims=Batcher(
            partial(claim, db, worker=worker, hold_s=settings.worker.step_timeout_s),
            alone_on=(psycopg.Error,),
        ),
        commits=group_commit(db),
        throttles=Throttles(db, ends.channel, clock.now),
        breakers=Breakers(db, ends.channel, clock.now, settings.tool),
        sandbox=WorkerSandbox(
            settings.sandbox,
            settings.data_dir.resolve(),
            modules=caged_modules(registry),
            dial=checked_dial(settings.tool.http_allow),
        ),
        secrets=secrets,
        clock=clock,
    )


async def start_runtime(runtime: Runtime) -> None:
    """Announce the process and what it has."""
    runtime.clock.set(
        await register(
            runtime.heart, runtime.settings, runtime.worker, runtime.name, runtime.plugins
        )
    )
    await announce(runtime.heart, runtime.worker, runtime.catalog.local)
    runtime.throttles.deaf = runtime.breakers.deaf = True  # until the broadcasts are heard
    runtime.live.nudge()  # there is more room now


def mcp_source(
    settings: Settings, db: Database, egress: Egress, secrets: TenantSecrets
) -> McpEntry:
    """Return the source of MCP tools, with what it needs of the rest of the worker."""
    return McpEntry(
        db,
        Needs(
            settings=settings.mcp,
            homes=settings.data_dir.resolve() / "mcp",
            client=egress.client,
            check=check_foreign_spec,
            secrets=secrets,
        ),
    )


async def close_runtime(runtime: Runtime) -> None:
    """Leave in an orderly way."""
    if runtime.sandbox is not None:
        await runtime.sandbox.stop()
    if runtime.mcp is not None:
        await runtime.mcp.aclose()
    await runtime.db.fetch("worker_leave", {"worker": runtime.worker})
    await runtime.http.aclose()
    await runtime.models.aclose()
    if runtime.redis is not None:
        await runtime.redis.aclose()
    await runtime.heart.__aexit__()
    await runtime.db.__aexit__()
