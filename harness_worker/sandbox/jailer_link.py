"""The worker's end of the jailer: starts it, gives it orders, hears what became of the cages.

Nothing here blocks the event loop. A jailer that dies takes its cages along; what it could not is
killed here, and another is started for the next call.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from harness_common.core.errors import Permanent, Transient
from harness_common.embedded.process import spawn
from harness_worker.sandbox.layout import Profile

log = structlog.get_logger()

_READY_S: Final = 15.0
_MAX_NEWS_BYTES: Final = 256 * 1024
ROOT: Final = str(Path(__file__).resolve().parents[2])
"""The folder in which the package `harness_worker` is."""
_START: Final = (
    f"import sys; sys.path.insert(0, {ROOT!r}); "
    "from harness_worker.sandbox.jailer import main; main()"
)


@dataclass(frozen=True, slots=True)
class Closed:
    """What the jailer says of a cage once nothing of it is left."""

    code: int
    """Of its first process; negative for a signal."""
    hit: tuple[str, float] | None


@dataclass(slots=True)
class Opened:
    """A new cage: the ends of its pipes, which belong to whoever asked, and its end to come."""

    id: int
    tier: str
    pid: int
    fds: tuple[int, int, int]
    closed: asyncio.Future[Closed]


@dataclass(slots=True)
class _Waiting:
    tier: str
    opened: asyncio.Future[Opened]
    closed: asyncio.Future[Closed]
    pid: int | None = None


@dataclass(slots=True)
class JailerLink:
    """One jailer at a time, started when it is needed."""

    config: dict[str, Any]
    """What `jailer.main` takes, but for the folder."""
    on_loss: Callable[[], None] = lambda: None
    restarts: int = -1
    facts: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    pid: int | None = None
    start_problem: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _orders: socket.socket | None = None
    _cages: dict[int, _Waiting] = field(default_factory=dict)
    _next: int = 0
    _ready: asyncio.Future[dict[str, Any]] | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Make sure that a jailer runs; raises `Permanent` (`SANDBOX_FAILED`)."""
        async with self._starting:
            if self._orders is None:
                await self._start()

    async def open(self, tier: str, profile: Profile) -> Opened:
        """Have a cage made; raises `Permanent` or `Transient`."""
        await self.start()
        loop = asyncio.get_running_loop()
        self._next += 1
        number = self._next
        waiting = _Waiting(tier, loop.create_future(), loop.create_future())
        self._cages[number] = waiting
        try:
            self._order(op="open", id=number, tier=tier, profile=profile.to_json())
            return await asyncio.shield(waiting.opened)
        except asyncio.CancelledError:
            waiting.opened.add_done_callback(self._give_back)
            raise

    def begin(self, cage: Opened, limits: dict[str, float]) -> None:
        """Have the jailer hold a cage against its limits from now on."""
        self._order(op="begin", id=cage.id, limits=limits)

    def end(self, cage: Opened) -> None:
        """Have a cage ended; its `closed` says when nothing of it is left."""
        if not cage.closed.done():
            with contextlib.suppress(Transient):
                self._order(op="end", id=cage.id)

    async def stop(self) -> None:
        """End the jailer and with it all cages; returns when both are gone."""
        process, self._process = self._process, None
        self._lose()
        if process is not None:
            try:
                await asyncio.to_thread(process.wait, 6.0)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        if self.folder is not None:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _start(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        if self.folder is not None:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix="harness-cages-"))
        if os.geteuid() == 0:
            self.folder.chmod(0o711)  # the sockets in it have names that cannot be guessed
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        config = json.dumps({**self.config, "folder": str(self.folder)})
        argv = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), config]
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        try:
            self._process = await asyncio.to_thread(self._spawn, argv, theirs.fileno())
        finally:
            theirs.close()
        self._orders = ours
        loop.add_reader(ours.fileno(), self._hear)
        try:
            async with asyncio.timeout(_READY_S):
                news = await self._ready
        except (TimeoutError, Transient) as error:
            self._lose()
            raise Permanent(
                f"the sandbox's jailer process did not start: {self.start_problem or error}",
                code="SANDBOX_FAILED",
            ) from error
        self.facts, self.pid = news["facts"], news["ready"]
        self.restarts += 1
        log.info("sandbox.jailer_started", pid=self.pid, restarts=self.restarts)

    @staticmethod
    def _spawn(argv: list[str], fd: int) -> subprocess.Popen[bytes]:
        if not sys.dont_write_bytecode:
            # Cages may not write what they compile, and would do it again in each.
            compileall.compile_dir(Path(__file__).parent, quiet=2)
        return spawn(
            argv,
            # Which it ignores: it sees the socket close, and takes its cages along.
            death_signal=signal.SIGTERM,
            env={"PATH": "/usr/bin:/bin"},
            stdout=subprocess.DEVNULL,
            pass_fds=(fd,),
        )

    def _order(self, **what: Any) -> None:
        if self._orders is None:
            raise _lost()
        try:
            self._orders.send(json.dumps(what).encode())
        except OSError as error:  # full or closed: it does not listen any more
            raise _lost() from error

    def _hear(self) -> None:
        """Read all news there is."""
        while self._orders is not None:
            try:
                data, fds, _, _ = socket.recv_fds(self._orders, _MAX_NEWS_BYTES, 3)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._lose()
                return
            self._note(json.loads(data), fds)

    def _note(self, news: dict[str, Any], fds: list[int]) -> None:
        if "ready" in news and self._ready is not None and not self._ready.done():
            self._ready.set_result(news)
        elif "failed_start" in news:
            self.start_problem = news["failed_start"]
        elif "opened" in news:
            number, waiting = news["opened"], self._cages[news["opened"]]
            waiting.pid = news["pid"]
            one, two, three = fds
            opened = Opened(number, waiting.tier, news["pid"], (one, two, three), waiting.closed)
            waiting.opened.set_result(opened)
        elif "failed" in news:
            waiting = self._cages.pop(news["failed"])
            why = Permanent(f"no cage could be made: {news['why']}", code="SANDBOX_FAILED")
            waiting.opened.set_exception(why)
        elif "closed" in news:
            waiting = self._cages.pop(news["closed"])
            hit = tuple(news["hit"]) if news["hit"] else None
            waiting.closed.set_result(Closed(news["code"], hit))

    def _give_back(self, opened: asyncio.Future[Opened]) -> None:
        """End a cage that nobody waits for any more."""
        if opened.cancelled() or opened.exception() is not None:
            return
        cage = opened.result()
        for fd in cage.fds:
            os.close(fd)
        self.end(cage)

    def _lose(self) -> None:
        """Give up a jailer that is gone: so are its cages, or they are killed now."""
        if self._orders is None:
            return
        asyncio.get_running_loop().remove_reader(self._orders.fileno())
        self._orders.close()
        self._orders = None
        cages, self._cages = self._cages, {}
        if self._process is not None and cages:
            log.warning("sandbox.jailer_lost", pid=self.pid, cages=len(cages))
        for waiting in cages.values():
            if waiting.tier == "B" and waiting.pid is not None and self._process is not None:
                # Its first process dies with the jailer; what that one started does not.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(waiting.pid, signal.SIGKILL)
            for future in (waiting.opened, waiting.closed):
                if not future.done():
                    future.set_exception(_lost())
                    future.exception()  # nobody may be waiting for it
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(_lost())
        self.on_loss()


def _lost() -> Transient:
    return Transient(
        "the process that makes sandboxes ended; another takes its place", code="SANDBOX_LOST"
    )
