"""A TCP proxy before Postgres that counts round trips: every answer of the server that ends with
`ReadyForQuery` is one. It serves from a thread of its own.

The format is https://www.postgresql.org/docs/18/protocol-message-formats.html: one byte of type,
four of length (itself included). Clients must connect with `sslmode=disable`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_READY = ord("Z")


class Frames:
    """Counts the `ReadyForQuery` messages of one server's stream, however it is cut."""

    def __init__(self) -> None:
        self.ready = 0
        self._head = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns how many messages of that type began in them."""
        before, at = self.ready, 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            part = data[at : at + 5 - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == 5:
                self.ready += self._head[0] == _READY
                self._skip = int.from_bytes(self._head[1:], "big") - 4
                self._head.clear()
        return self.ready - before


class CountingProxy:
    """Listens on a port of its own before the server of `url`. Use as a context manager."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.round_trips = 0

    def __enter__(self) -> Self:
        self._thread.start()
        made = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(made, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where clients connect instead."""
        login = self._parts.netloc.rpartition("@")[0]
        netloc = f"{login}@127.0.0.1:{self.port}"
        query = "sslmode=disable&gssencmode=disable"
        return urlunsplit(self._parts._replace(netloc=netloc, query=query))

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(
                self._parts.hostname, self._parts.port
            )
            await asyncio.gather(
                _copy(reader, up_writer), self._copy_counting(up_reader, writer, Frames())
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _copy_counting(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames
    ) -> None:
        while data := await reader.read(65_536):
            self.round_trips += frames.feed(data)
            writer.write(data)
            await writer.drain()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
