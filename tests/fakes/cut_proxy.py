"""A TCP proxy that lies: between a client and a real server it passes, delays, swallows or cuts, as
told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Literal

Mode = Literal["pass", "drop_replies", "blackhole"]


class CutProxy:
    """Use with `async with`; change `mode` and `latency_s` at any time, `rst()` cuts what is open.

    - `drop_replies`: requests arrive, answers vanish: nobody knows what came of a commit.
    - `blackhole`: new connections are accepted, and nothing goes either way: nobody gets an error.

    `on_request` sees the bytes of each request before they are passed on, and may change the mode.
    """

    def __init__(self, host: str, port: int) -> None:
        self.mode: Mode = "pass"
        self.latency_s = 0.0
        self.on_request: Callable[[bytes], None] | None = None
        self.accepted = 0
        self._target = (host, port)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CutProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.rst()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rst(self) -> None:
        """Reset every open connection, on both sides."""
        for writer in list(self._open):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            replies, upstream = await asyncio.open_connection(*self._target)
            self._open.add(upstream)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream, reply=False))
                group.create_task(self._pump(replies, writer, reply=True))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, upstream):
                if one is not None:
                    self._open.discard(one)
                    one.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        while data := await source.read(65536):
            if not reply and self.on_request is not None:
                self.on_request(data)
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if self.mode == "blackhole" or (self.mode == "drop_replies" and reply):
                continue
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError("one side has ended")
