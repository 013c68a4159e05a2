"""A cage as the worker talks to it: job in, frames and output back, within bounds."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from harness_common.contracts.sandbox import Ask, CageFile, CageJob
from harness_common.core.errors import HarnessError, Permanent, Transient
from harness_worker.sandbox import frames
from harness_worker.sandbox.jailer_link import Opened
from harness_worker.sandbox.values import pack_error

_READY_S: Final = 20.0
_MAX_FRAMES: Final = 10_000
_MAX_PATH_CHARS: Final = 240
_STDERR_BYTES: Final = 2_000


class Collected(asyncio.Protocol):
    """The beginning of a stream; more than the limit sets `over`."""

    def __init__(self) -> None:
        self.limit = 64 * 1024
        self.data = bytearray()
        self.over = False
        self.on_over: asyncio.Event | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Keep what has room."""
        room = self.limit - len(self.data)
        self.data += data[: max(0, room)]
        if len(data) > room:
            self.over = True
            if self.on_over is not None:
                self.on_over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the stream has ended."""
        del exc
        if not self.ended.done():
            self.ended.set_result(None)

    def text(self) -> str:
        """Return it, with bytes that are not UTF-8 replaced."""
        return self.data.decode("utf-8", errors="replace")


@dataclass(slots=True)
class Said:
    """What a cage sent."""

    files: list[CageFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    value: Mapping[str, Any] | None = None
    value_body: bytes = b""
    ended: Mapping[str, Any] | None = None


class Cage:
    """A cage that is ready for its one job."""

    def __init__(self, opened: Opened, streams: tuple[Collected, Collected]) -> None:
        self.opened = opened
        self.stdout, self.stderr = streams
        self.over = asyncio.Event()
        self._transports: list[asyncio.BaseTransport] = []
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def connect(cls, opened: Opened) -> Cage:
        """Take over the pipes of a new cage and wait until it is ready.

        Raises `Permanent` (`SANDBOX_FAILED`) with what the cage said instead.
        """
        cage = cls(opened, (Collected(), Collected()))
        try:
            await cage._become_ready()
        except BaseException:
            cage.hang_up()
            raise
        return cage

    async def _become_ready(self) -> None:
        loop = asyncio.get_running_loop()
        ctrl, *pipes = self.opened.fds
        for stream, fd in zip((self.stdout, self.stderr), pipes, strict=True):
            pipe = os.fdopen(fd, "rb", buffering=0)
            transport, _ = await loop.connect_read_pipe(lambda s=stream: s, pipe)  # type: ignore[misc]
            self._transports.append(transport)
        self._reader, self._writer = await asyncio.open_connection(sock=socket.socket(fileno=ctrl))
        try:
            async with asyncio.timeout(_READY_S):
                await self._frame(0)
        except (TimeoutError, asyncio.IncompleteReadError, OSError, frames.BadFrame) as error:
            await asyncio.wait([self.stderr.ended], timeout=0.5)
            why = self.stderr.text()[-_STDERR_BYTES:].strip() or "it ended without a word"
            raise Permanent(f"the cage did not start: {why}", code="SANDBOX_FAILED") from error

    async def converse(self, job: CageJob, extra: Mapping[str, float], ask: Ask | None) -> Said:
        """Hand over the job and listen until it has ended or the cage is gone."""
        for stream in (self.stdout, self.stderr):
            stream.limit, stream.on_over = job.limits.output_bytes, self.over
        said = Said()
        try:
            await self._send(_job_frame(job, extra))
            await self._listen(job, ask, said)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it is gone: the jailer says why
        except frames.BadFrame as error:
            raise Permanent(
                f"the tool's process sent something that is no frame: {error}", code="BAD_RESULT"
            ) from error
        return said

    async def drained(self) -> None:
        """Wait for the rest of the output; the cage must have been closed."""
        await asyncio.wait([self.stdout.ended, self.stderr.ended], timeout=2.0)

    def hang_up(self) -> None:
        """Close our ends."""
        if self._writer is not None:
            self._writer.close()
        for transport in self._transports:
            transport.close()

    async def _listen(self, job: CageJob, ask: Ask | None, said: Said) -> None:
        room = job.limits.artifact_bytes
        kept = 0  # in the middle of the call
        for _ in range(_MAX_FRAMES):
            head, body = await self._frame(room)
            if "ended" in head:
                said.ended = head
                said.left_out += [str(p)[:_MAX_PATH_CHARS] for p in head.get("left_out") or ()]
                return
            if "file" in head:
                room -= len(body)
                said.files.append(CageFile(_safe_path(head["file"]), body))
            elif "value" in head and isinstance(head["value"], dict):
                said.value, said.value_body = head["value"], body
            elif "ask" in head:
                kept += len(body)
                if kept > job.limits.artifact_bytes:
                    await self._send(frames.pack(pack_error(_too_much(job)), b""))
                else:
                    await self._answer(head, body, ask)
            else:
                raise frames.BadFrame("a frame of no known kind")
        raise frames.BadFrame(f"more than {_MAX_FRAMES} frames")

    async def _answer(self, head: frames.Head, body: bytes, ask: Ask | None) -> None:
        if ask is None:
            raise frames.BadFrame("a question where none is expected")
        try:
            answer, data = await ask(head, body)
        except Transient:
            raise  # the database is away: not the tool's to hear
        except HarnessError as error:
            answer, data = pack_error(error), b""
        except (KeyError, TypeError, ValueError) as error:
            raise frames.BadFrame(f"a question that makes no sense: {error}") from error
        await self._send(frames.pack(dict(answer), data))

    async def _send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    async def _frame(self, max_body_bytes: int) -> tuple[frames.Head, bytes]:
        prefix = await self._reader.readexactly(frames.HEAD.size)
        text, body = frames.sizes(prefix, max_body_bytes)
        head = frames.parse(await self._reader.readexactly(text))
        return head, await self._reader.readexactly(body)


def _too_much(job: CageJob) -> Permanent:
    return Permanent(
        f"the artifacts of one call have at most {job.limits.artifact_bytes} bytes together",
        code="LIMIT_EXCEEDED",
        limit=job.limits.artifact_bytes,
    )


def _job_frame(job: CageJob, extra: Mapping[str, float]) -> bytes:
    limits = job.limits
    head = {
        "kind": job.kind,
        "source": job.source,
        "files": [(_safe_path(f.path), len(f.data)) for f in job.files],
        "stdin": job.stdin.decode("utf-8", "surrogateescape"),
        "env": dict(job.env),
        "module": job.module,
        "call": dict(job.call),
        "limits": {
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "disk_bytes": limits.disk_bytes,
            "artifact_bytes": limits.artifact_bytes,
            **extra,
        },
    }
    return frames.pack(head, b"".join(f.data for f in job.files))


def _safe_path(text: object) -> str:
    """Check a path below the work folder; raises `BadFrame`."""
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_PATH_CHARS or "\0" in text:
        raise frames.BadFrame("a file without a proper name")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or str(path) == ".":
        raise frames.BadFrame(f"the path {text!r} leaves the work folder")
    return str(path)
