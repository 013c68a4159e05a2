"""The sandbox of a worker process: picks the tier that holds, keeps cages warm, runs jobs.

Cages are made ahead of the next call, since a fresh interpreter behind fresh namespaces takes tens
of milliseconds; each still runs one job and is gone before the result is returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from harness_common.contracts.sandbox import (
    Ask,
    CageJob,
    CageResult,
    LimitHit,
    SandboxTier,
    TierReport,
)
from harness_common.core.errors import Denied, Permanent, Transient
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import blame, bubblewrap, kernel
from harness_worker.sandbox.cage import Cage, Said
from harness_worker.sandbox.code import interpreter, place, tree
from harness_worker.sandbox.egress import Dial, EgressProxy, refuse_all
from harness_worker.sandbox.jailer_link import ROOT, Closed, JailerLink, Opened
from harness_worker.sandbox.layout import Profile
from harness_worker.sandbox.probe import probe
from harness_worker.telemetry import metrics

log = structlog.get_logger()

_WARM_S: Final = 60.0
"""How long a kind of cage is kept ready after its last call."""
_SPARE_SLOTS: Final = 8
"""Slots of the jailer beyond the calls at once: for warm cages and those that are ending."""
_HEAVY_BYTES: Final = 256 * 1024 * 1024
_TOOL_PRELOAD: Final = ("harness_worker.sdk", "harness_worker.sandbox.caged_tool", "asyncio")

Kind = tuple[str, Profile]
T = TypeVar("T")


class WorkerSandbox:
    """Implements `contracts.sandbox.Sandbox`."""

    def __init__(
        self,
        config: SandboxSettings,
        cache_dir: Path | None = None,
        *,
        modules: Iterable[str] = (),
        dial: Dial = refuse_all,
    ) -> None:
        """`modules` are those of the tools that may run in a cage; `dial` opens connections for
        tools with `hosts`, and refuses addresses that nobody may reach.
        """
        self._config, self._cache_dir = config, cache_dir
        self._bwrap = bubblewrap.find(config.bwrap)
        self._modules = tuple(modules)
        self._dial = dial
        self._slots = asyncio.Semaphore(config.slots)
        self._heavy = asyncio.Lock()
        self._report: asyncio.Task[TierReport] | None = None
        self._warm: dict[Kind, list[Cage]] = {}
        self._used_at: dict[Kind, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self.refused = 0
        """Calls refused because the tier they need does not hold."""
        self.calls = 0
        self.link = JailerLink(
            {
                "bwrap": self._bwrap.path or "",
                "slots": config.slots + _SPARE_SLOTS,
                "uid_base": config.uid_base,
                "cgroup": str(config.cgroup) if config.cgroup else None,
                "expose": [*interpreter(), *self._code(), *self._bwrap.folders],
            },
            on_loss=self._forget_warm,
        )

    def start_in_background(self) -> None:
        """Start the jailer and the self-test beside everything else: a worker does not wait for
        them, the first caged call does.
        """
        self._in_background(self._start_quietly())

    async def _start_quietly(self) -> None:
        try:
            await self.report()
        except (Permanent, Transient) as error:
            log.warning("sandbox.not_started", why=str(error))

    # --- what holds ---

    async def report(self) -> TierReport:
        """Return what holds. The first call runs the self-test, or takes the result of an earlier
        one on this boot with the same programs and user.
        """
        if self._report is None:
            self._report = asyncio.ensure_future(self._find_out())
        try:
            return await asyncio.shield(self._report)
        except (Permanent, Transient):
            self._report = None  # the next call tries again
            raise

    @property
    def found(self) -> TierReport | None:
        """Return what the self-test found, if it has ended."""
        task = self._report
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def _find_out(self) -> TierReport:
        if not kernel.SUPPORTED:
            why = "it needs Linux on x86-64"
            metrics.sandbox_degraded.set(1)
            return TierReport(SandboxTier.NONE, {"A": why, "B": why})
        await self.link.start()
        report = await probe(self, self.link.facts, self._cache_dir, self._bwrap)
        metrics.sandbox_degraded.set(report.best is not SandboxTier.A)
        if report.best is not SandboxTier.A:
            log.warning("sandbox.tier", best=str(report.best), why_not=dict(report.why_not))
        else:
            log.info("sandbox.tier", best="A", notes=report.notes)
        return report

    @property
    def bwrap_problem(self) -> str | None:
        """Return why there is no tier A at all, or None."""
        return None if self._bwrap.path is not None else self._bwrap.why_not

    # --- running ---

    async def run(
        self,
        job: CageJob,
        minimum: SandboxTier,
        ask: Ask | None = None,
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> CageResult:
        """Run a job in the strongest tier that holds (see `contracts.sandbox.Sandbox`)."""
        wanted = SandboxTier.A if job.hosts else minimum
        report = await self.report()
        if not report.best.reaches(wanted):
            self.refused += 1
            metrics.sandbox_refusals.inc()
            causes = [t for t in (SandboxTier.A, SandboxTier.B) if t.reaches(wanted)]
            why = "; ".join(f"tier {t}: {report.why_not.get(t, 'unknown')}" for t in causes)
            log.warning("sandbox.refused", minimum=str(wanted), best=str(report.best), why=why)
            raise Denied(
                f"it needs sandbox tier {wanted}, and this worker has {report.best} ({why}). "
                "It was not run; the operator can see `harness doctor`.",
                code="SANDBOX_UNAVAILABLE",
                minimum=str(wanted),
                best=str(report.best),
            )
        return await self.run_in(report.best, job, ask, on_start=on_start)

    async def run_in(
        self,
        tier: SandboxTier,
        job: CageJob,
        ask: Ask | None = None,
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> CageResult:
        """Run a job in a given tier, whether it is known to hold or not: for the self-test."""
        async with self._slots, self._alone_if_heavy(job), self._proxy(job) as proxy:
            self.calls += 1
            kind = (str(tier), self._profile(job, proxy))
            cage = await self._take(kind)
            said = Said()
            try:
                said = await self._converse(cage, tier, job, ask, on_start)
            finally:
                # Shielded: whatever stops this call, the cage is gone before it returns.
                closed = await _to_the_end(self._end(cage))
                self._keep_warm(kind)
        return _result(tier, job, cage, said, closed)

    async def _converse(
        self,
        cage: Cage,
        tier: SandboxTier,
        job: CageJob,
        ask: Ask | None,
        on_start: Callable[[], None],
    ) -> Said:
        extra: dict[str, float] = {}
        if tier is SandboxTier.B and not self.link.facts["own_users"]:
            extra["users_processes"] = float(_processes_of_user())
        limits = job.limits
        self.link.begin(
            cage.opened,
            {
                "cpu_s": limits.cpu_s,
                "memory_bytes": limits.memory_bytes,
                "processes": limits.processes,
                "disk_bytes": limits.disk_bytes,
            },
        )
        over = asyncio.ensure_future(cage.over.wait())
        over.add_done_callback(
            lambda done: None if done.cancelled() else self.link.end(cage.opened)
        )
        on_start()
        try:
            return await cage.converse(job, extra, ask)
        finally:
            over.cancel()

    async def _end(self, cage: Cage) -> Closed | None:
        """End a cage and wait until nothing of it is left; None when the jailer was lost."""
        closed = await self._gone(cage.opened)
        await cage.drained()
        cage.hang_up()
        return closed

    @contextlib.asynccontextmanager
    async def _alone_if_heavy(self, job: CageJob) -> AsyncIterator[None]:
        """Without memory groups, calls that may use much memory run one at a time."""
        await self.link.start()
        if self.link.facts["memory_groups"] or job.limits.memory_bytes <= _HEAVY_BYTES:
            yield
            return
        async with self._heavy:
            yield

    @contextlib.asynccontextmanager
    async def _proxy(self, job: CageJob) -> AsyncIterator[str]:
        """Open the one way out that a job has, if it has one; yields its socket."""
        if not job.hosts:
            yield ""
            return
        await self.link.start()
        assert self.link.folder is not None
        async with EgressProxy(self.link.folder, job.hosts, self._dial) as proxy:
            yield proxy.path

    # --- cages ---

    async def _take(self, kind: Kind) -> Cage:
        """Take a warm cage or make one."""
        self._used_at[kind] = time.monotonic()
        ready = self._warm.get(kind, [])
        while ready:
            cage = ready.pop(0)
            if not cage.opened.closed.done():
                return cage
            cage.hang_up()
        return await self._make(kind)

    async def _make(self, kind: Kind) -> Cage:
        opening = asyncio.ensure_future(self.link.open(*kind))
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opened = await _to_the_end(opening)
            for fd in opened.fds:
                os.close(fd)
            await _to_the_end(self._gone(opened))
            raise
        try:
            return await Cage.connect(opened)
        except BaseException:
            await _to_the_end(self._gone(opened))
            raise

    async def _gone(self, opened: Opened) -> Closed | None:
        """End a cage and wait until nothing of it is left; None when the jailer was lost."""
        self.link.end(opened)
        try:
            return await asyncio.shield(opened.closed)
        except Transient:
            return None

    def _keep_warm(self, kind: Kind) -> None:
        """Make a cage for the next call of the kind, in the background."""
        if kind[1].proxy or self._stopped or len(self._warm.get(kind, ())) >= self._config.warm:
            return
        self._in_background(self._warm_up(kind))

    async def _warm_up(self, kind: Kind) -> None:
        ready = self._warm.setdefault(kind, [])
        with contextlib.suppress(Permanent, Transient):
            while len(ready) < self._config.warm and not self._stopped:
                cage = await self._make(kind)
                ready.append(cage)
        await asyncio.sleep(_WARM_S)
        if time.monotonic() - self._used_at[kind] >= _WARM_S:
            self._drop(kind)

    def _drop(self, kind: Kind) -> None:
        for cage in self._warm.pop(kind, ()):
            self._in_background(self._end(cage))

    def _forget_warm(self) -> None:
        warm, self._warm = self._warm, {}
        for cage in (c for cages in warm.values() for c in cages):
            cage.hang_up()

    def _in_background(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End every cage and the jailer."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._report is not None:
            self._report.cancel()
            await asyncio.gather(self._report, return_exceptions=True)
        await self.link.stop()

    # --- what a cage sees ---

    def _profile(self, job: CageJob, proxy: str) -> Profile:
        here = Path(ROOT, "harness_worker")
        names = {
            "harness_worker": str(here / "__init__.py"),
            "harness_worker.sandbox": str(here / "sandbox" / "__init__.py"),
        }
        profile = Profile(
            python=sys.executable,
            modules=tuple(names.items()),
            trees=(*interpreter(), names["harness_worker"], str(here / "sandbox")),
            disk_bytes=job.limits.disk_bytes,
            inet=bool(proxy),
            proxy=proxy,
        )
        if job.kind != "tool":
            return profile
        names["harness_common"] = str(Path(ROOT, "harness_common", "__init__.py"))
        for module in self._modules:
            names.setdefault(module.partition(".")[0], place(module))
        return replace(
            profile,
            modules=tuple(names.items()),
            trees=(*interpreter(), *self._code()),
            preload=_TOOL_PRELOAD,
        )

    def _code(self) -> list[str]:
        """Return the code that a caged tool needs: ours and the modules that hold the tools."""
        ours = [str(Path(ROOT, name)) for name in ("harness_common", "harness_worker")]
        return list(dict.fromkeys([*ours, *(tree(m) for m in self._modules)]))


async def _to_the_end(work: Awaitable[T]) -> T:
    """Await something whatever stops this task meanwhile: what stops it is heard afterwards."""
    future = asyncio.ensure_future(work)
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(future)
    return future.result()


def _result(
    tier: SandboxTier, job: CageJob, cage: Cage, said: Said, closed: Closed | None
) -> CageResult:
    """Put together what the cage said and what the jailer saw."""
    stdout, stderr, ended = cage.stdout.text(), cage.stderr.text(), dict(said.ended or {})
    over = cage.stdout.over or cage.stderr.over
    limit = ended.get("limit")
    if closed is not None and closed.hit is not None:
        limit = closed.hit[0]
    elif over:
        limit = "output_bytes"
    elif said.ended is None:
        if closed is None:
            raise Transient(
                "the process that makes sandboxes ended during the call",
                code="SANDBOX_LOST",
                began=True,
            )
        ended["exit_code"] = 128 - closed.code if closed.code < 0 else closed.code or 137
    blocked = ended.get("blocked")
    if job.kind == "shell" and blocked is None and (limit is None or cage.stderr.over):
        judged = blame.judge_text(stderr) if ended.get("exit_code", 1) else {}
        blocked = judged.get("blocked")
        # Complaints without end (`rm -rf /`) are about what is forbidden, not about their number.
        limit = judged.get("limit", None if blocked else limit)
    value = getattr(job.limits, str(limit), None)
    hit = LimitHit(str(limit), value) if value is not None else None
    code = ended.get("exit_code")
    return CageResult(
        exit_code=blame.BLOCKED_EXIT if blocked else code if isinstance(code, int) else 137,
        stdout=stdout,
        stderr=stderr,
        tier=tier,
        files=tuple(said.files),
        left_out=tuple(said.left_out),
        truncated=over,
        hit=hit,
        blocked=str(blocked) if blocked and hit is None else None,
        value=said.value,
        value_body=said.value_body,
    )


def _processes_of_user() -> int:
    """Count what the kernel would count against this user: all its threads."""
    uid, count = os.geteuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
