"""Harness within one process, without Postgres, Redis or Celery: for tests and notebooks.

    from harness_worker.local import LocalHarness
    from harness_worker.sdk import tool

    async with LocalHarness(tools=[weather]) as h:
        await h.agent("guide", model="openai/gpt-5-mini", tools=["weather"])
        run = await h.run("guide", "Do I need an umbrella in Bergen?")

What runs is the worker and the scheduler themselves, over `store.memory` and `coord.local`: the
same rules, steps, ledger and policy, with a checkpoint of every step. Only nothing is kept when the
process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self
from uuid import UUID, uuid4

import structlog

from harness_common import commands
from harness_common.broker.publish import Doorbell
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.skill import SkillSpec
from harness_common.contracts.tool import Tool
from harness_common.coord.local import LocalBus, LocalChannel, LocalLeases, LocalLive
from harness_common.core.errors import Conflict
from harness_common.core.ids import decode, encode
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_common.store import keys
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.effects import CallKey, Resolution, ResolvedAs
from harness_common.store.memory import MemoryDatabase
from harness_common.store.memory.database import wall_clock
from harness_common.store.memory.tables import Clock
from harness_common.store.policies import TENANT, put_policy
from harness_common.store.run_reads import read_events
from harness_common.store.skills import put_skill
from harness_worker.advance import answer, release_all
from harness_worker.ends import Ends
from harness_worker.heartbeat import heartbeat_loop, lease_loop, signal_loop
from harness_worker.local_run import LocalRun, read_local
from harness_worker.models.registry import Factory, ModelRegistry
from harness_worker.plugins import merged
from harness_worker.runtime import Runtime, close_runtime, make_runtime, start_runtime
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.looper import Loop, Shared
from harness_worker.scheduler.release import ReleaseLoop
from harness_worker.scheduler.service import Scheduler
from harness_worker.scheduler.wake import WakeLoop

log = structlog.get_logger()

_LOOK_S: Final = 0.25
"""How often a run that is waited for is looked at although nothing was heard of it."""
_STOP_S: Final = 5.0

Run = LocalRun | str
"""A run as it was read, or its id."""


class LocalBell:
    """Answers each doorbell in a task of its own, as many at once as a worker process would."""

    def __init__(self, at_once: int) -> None:
        self.runtime: Runtime | None = None
        self.lost = 0
        self.works = True
        self.renewed = 0
        self._places = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()

    def ring(self, bell: Doorbell) -> None:
        """Answer soon."""
        task = asyncio.get_running_loop().create_task(self._answer(bell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, bell: Doorbell) -> None:
        assert self.runtime is not None
        async with self._places:
            try:
                await answer(self.runtime, bell.tenant_id, bell.run_id, bell.version)
            except Exception:
                log.exception("doorbell.failed", run_id=encode("run", bell.run_id))

    def close(self, timeout_s: float = 2.0) -> None:
        """Do nothing: `settle` waits for what is under way."""

    async def settle(self) -> None:
        """Wait for what is under way, at most for a while."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_STOP_S)
        for task in set(self._tasks):
            task.cancel()


def _loops(shared: Shared) -> list[Loop]:
    """Return the scheduler's loops that a process which is alone needs: nobody dies without it."""
    return [
        CancelLoop(shared),
        WakeLoop(shared),
        ReleaseLoop(shared),
        AdmitLoop(shared),
        DispatchLoop(shared),
    ]


@dataclass(frozen=True, slots=True)
class _Open:
    """What a harness has while it is open."""

    runtime: Runtime
    scheduler: Scheduler
    tenant_id: UUID
    who: str
    """The key that starts runs: an admin's, so that policy knows a role."""


class LocalHarness:
    """Runs agents in this process. Open with `async with`; safe to use from many tasks."""

    def __init__(
        self,
        *,
        tools: Iterable[Tool] = (),
        settings: Settings | None = None,
        providers: Mapping[str, Factory] | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        """Take further tools and model providers (by name), and the clock that timers and deadlines
        go by.
        """
        settings = settings or Settings()
        self.settings = settings.model_copy(update={"blobs": settings.blobs or "memory:"})
        self.db = MemoryDatabase(self.settings.database, clock=clock)
        self._tools, self._providers = tuple(tools), providers
        self._open: _Open | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        bus, settings = LocalBus(), self.settings
        self._channel, self._live = LocalChannel(bus), LocalLive(bus)
        self._bell = LocalBell(settings.worker.concurrency)
        leases = LocalLeases(settings.worker.lease_s)
        ends = Ends(self.db, self.db, None, leases, self._channel, self._live, self._bell)
        tenant_id, who = await self._tenant()
        runtime = self._bell.runtime = make_runtime(settings, ends, uuid4(), "local")
        for tool in self._tools:
            runtime.catalog.local.add(tool)
        if self._providers is not None:
            more = {**merged(runtime.plugins, "providers"), **self._providers}
            runtime.models = ModelRegistry(settings, runtime.http, more)
        await start_runtime(runtime)
        scheduler = Scheduler(settings)
        shared = Shared(settings, self.db, None, leases, self._bell, channel=self._channel)
        self._open = _Open(runtime, scheduler, tenant_id, who)
        self._tasks = [
            asyncio.create_task(loop)
            for loop in (
                heartbeat_loop(runtime),
                lease_loop(runtime),
                signal_loop(runtime),
                scheduler.serve(shared, self._channel, _loops),
            )
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        opened = self._opened
        opened.runtime.stopping = True
        opened.scheduler.stop()
        release_all(opened.runtime)
        await self._bell.settle()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_runtime(opened.runtime)
        self._open = None

    async def _tenant(self) -> tuple[UUID, str]:
        async with self.db.transaction() as conn:
            row = await ensure_tenant(conn, self.settings, "local", self.db.timeout_s)
            tenant_id: UUID = row["tenant_id"]
            new = keys.NewKey("local", "admin")
            key, _ = await keys.insert_key(conn, tenant_id, b"local", new, self.db.timeout_s)
        return tenant_id, encode("api_key", key["id"])

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            raise RuntimeError("open the harness first: async with LocalHarness() as h")
        return self._open

    @property
    def tenant_id(self) -> UUID:
        """Return the tenant that everything belongs to."""
        return self._opened.tenant_id

    @property
    def runtime(self) -> Runtime:
        """Return the worker's parts."""
        return self._opened.runtime

    # ── definitions ──────────────────────────────────────────────────────────────────────────────

    async def agent(self, name: str, spec: AgentSpec | None = None, **fields: Any) -> int:
        """Define an agent by its specification or by fields of it; return its version."""
        spec = spec or AgentSpec.model_validate(fields)
        row, _ = await put_agent(self.db, self.tenant_id, name, spec, Actor(self._opened.who))
        version: int = row["version"]
        return version

    async def skill(self, name: str, spec: SkillSpec) -> int:
        """Define a skill; return its version."""
        row, _ = await put_skill(self.db, self.tenant_id, name, spec, Actor(self._opened.who))
        version: int = row["version"]
        return version

    async def policy(self, source: str, *, agent: str = TENANT) -> int:
        """Set the rules about tool calls, as YAML; return their version."""
        row, _ = await put_policy(self.db, self.tenant_id, agent, source, Actor(self._opened.who))
        version: int = row["version"]
        return version

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    async def run(
        self, agent: str, input: str, *, timeout_s: float | None = 300.0, **options: Any
    ) -> LocalRun:
        """Start a run and wait until it is over or needs a person; `options` as in `StartRun`."""
        return await self.wait(await self.start(agent, input, **options), timeout_s=timeout_s)

    async def start(self, agent: str, input: str, **options: Any) -> LocalRun:
        """Start a run and return at once. `session` goes on with a conversation."""
        if (session := options.pop("session", None)) is not None:
            options["session_id"] = decode("session", session)
        request = commands.StartRun(agent, input, created_by=self._opened.who, **options)
        return await self._began(await commands.start_run(self.db, self.tenant_id, request))

    async def fork(self, run: Run, step: int | None = None, **changes: Any) -> LocalRun:
        """Make a new run from a checkpoint of another; `changes` as in `ForkRun`: `input`, `model`,
        `tools`, `agent_version`, or `dry_run=True` to play what was recorded.
        """
        request = commands.ForkRun(step, created_by=self._opened.who, **changes)
        made = await commands.fork_run(self.db, self.tenant_id, _uuid(run), request)
        return await self._began(made)

    async def retry(self, run: Run, *, from_step: int | None = None) -> LocalRun:
        """Make a new run that goes on where a failed or cancelled one stopped."""
        made = await commands.retry_run(
            self.db, self.tenant_id, _uuid(run), from_step=from_step, created_by=self._opened.who
        )
        return await self._began(made)

    async def _began(self, started: commands.Started) -> LocalRun:
        for one in started.interrupted:
            await self._told(one.run_id, one.asked, stops=True)
        if started.doorbell is not None:
            self._bell.ring(started.doorbell)
        else:
            self._live.nudge()
        return await self.look(encode("run", started.run_id))

    async def look(self, run: Run) -> LocalRun:
        """Read a run as it is now; raises `NotFound`."""
        return await read_local(self.db, self.tenant_id, _uuid(run))

    async def wait(self, run: Run, *, timeout_s: float | None = 300.0) -> LocalRun:
        """Wait until a run is over, or rests until a person does something; raises
        `TimeoutError`.
        """
        run_id, after = _uuid(run), 0
        async with asyncio.timeout(timeout_s), self._signs(run_id) as news:
            while True:
                news.clear()
                page = await read_events(self.db, self.tenant_id, run_id, after=after, limit=500)
                after = page.events[-1]["seq"] if page.events else after
                if page.ended or page.waits:
                    return await self.look(run)
                if page.is_last:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await news.wait()

    @contextlib.asynccontextmanager
    async def _signs(self, run_id: UUID) -> AsyncIterator[asyncio.Event]:
        """Give an event that is set whenever something is heard of a run."""
        news = asyncio.Event()

        async def listen() -> None:
            async with self._channel.watch(run_id) as shown:
                async for _ in shown:
                    news.set()

        listening = asyncio.create_task(listen())
        try:
            yield news
        finally:
            listening.cancel()

    @contextlib.asynccontextmanager
    async def watch(self, run: Run) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Listen to what a run shows while it goes on: commits and pieces of the answer."""
        async with self._channel.watch(_uuid(run)) as shown:
            yield shown

    # ── what people do ───────────────────────────────────────────────────────────────────────────

    async def approve(
        self, run: Run, *, by: str | None = None, arguments: Json = None, reason: str = ""
    ) -> LocalRun:
        """Say yes to every call that the run, as it was read, waits with; with `arguments` to its
        only one, changed.
        """
        return await self._decide(run, "approved", by, arguments, reason)

    async def deny(self, run: Run, *, by: str | None = None, reason: str = "") -> LocalRun:
        """Say no to every call that the run, as it was read, waits with."""
        return await self._decide(run, "denied", by, None, reason)

    async def _decide(
        self,
        run: Run,
        verdict: Literal["approved", "denied"],
        by: str | None,
        arguments: Json,
        reason: str,
    ) -> LocalRun:
        shown = run if isinstance(run, LocalRun) and run.approvals else await self.look(run)
        if not shown.approvals:
            raise Conflict(f"{shown.id} waits for no approval; it is {shown.status}")
        approver = commands.Approver(Actor(by or self._opened.who), "admin")
        for row in shown.approvals:
            said = commands.Decide(verdict, row["digest"], reason, arguments)
            _, asked = await commands.decide_approval(
                self.db, self.tenant_id, row["id"], said, approver=approver
            )
            await self._told(shown.uuid, asked)
        return await self.look(run)

    async def answer(self, run: Run, text: str, *, call: str | None = None) -> LocalRun:
        """Answer the question of a run: that of `call` (`step.index`), or its only one."""
        return await self._ask(run, commands.answer_run, text=text, call=call)

    async def steer(self, run: Run, text: str) -> LocalRun:
        """Give a run under way a message that its next model step sees."""
        return await self._ask(run, commands.steer_run, text=text)

    async def pause(self, run: Run) -> LocalRun:
        """Let a run rest after the step under way."""
        return await self._ask(run, commands.pause_run)

    async def resume(self, run: Run) -> LocalRun:
        """Let a paused run go on."""
        return await self._ask(run, commands.resume_run)

    async def cancel(self, run: Run, *, reason: str = "") -> LocalRun:
        """Stop a run."""
        return await self._ask(run, commands.cancel_run, reason=reason)

    async def _ask(
        self, run: Run, command: Callable[..., Awaitable[commands.Asked]], **said: Any
    ) -> LocalRun:
        run_id = _uuid(run)
        asked = await command(self.db, self.tenant_id, run_id, by=self._opened.who, **said)
        await self._told(run_id, asked, stops=command is commands.cancel_run)
        return await self.look(run)

    async def resolve(
        self, run: Run, call: str, outcome: ResolvedAs, *, reason: str, result: str | None = None
    ) -> LocalRun:
        """Say what became of a call (`step.index`) whose effect nobody knows."""
        step, index = map(int, call.split("."))
        said = Resolution(outcome, self._opened.who, reason, result)
        key = CallKey(_uuid(run), step, index)
        actor = Actor(self._opened.who)
        asked = await commands.resolve_effect(self.db, self.tenant_id, key, said, actor=actor)
        await self._told(key.run_id, asked)
        return await self.look(run)

    async def _told(self, run_id: UUID, asked: commands.Asked, *, stops: bool = False) -> None:
        """Let the worker, the scheduler and whoever waits know of an outside input."""
        if stops and asked.claimed_by is not None:
            await self._channel.cancel(asked.claimed_by, run_id)
        self._live.nudge()
        self._live.emit(run_id, {"type": "committed", "seq": asked.last_seq})


def _uuid(run: Run) -> UUID:
    return run.uuid if isinstance(run, LocalRun) else decode("run", run)
