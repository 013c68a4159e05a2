"""The egress proxy of one call: HTTP CONNECT on a Unix socket, to the hosts the tool declared.

Which addresses may be reached at all is decided by `dial`, which is given from outside: it
resolves, checks and connects in one go, so that a name cannot change its address in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

import structlog

from harness_common.core.errors import Denied, HarnessError

log = structlog.get_logger()

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int], Awaitable[Streams]]
"""Connects to (host, port), or raises `Denied` for an address that may not be reached."""

_HTTPS: Final = 443
_MAX_HEAD_BYTES: Final = 16 * 1024
_HEAD_S: Final = 10.0
_CONNECT_S: Final = 10.0
_MAX_AT_ONCE: Final = 32


async def refuse_all(host: str, port: int) -> Streams:
    """Refuse every connection: the sandbox was given no way out."""
    raise Denied(f"this worker has no way out to {host}:{port}", code="EGRESS_DENIED")


class EgressProxy:
    """Serves one cage for as long as it lives."""

    def __init__(self, folder: Path, hosts: tuple[str, ...], dial: Dial) -> None:
        self.path = str(folder / f"egress-{secrets.token_hex(16)}.sock")
        self._allowed = {_split(entry) for entry in hosts}
        self._dial = dial
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(
            self._accept, self.path, limit=_MAX_HEAD_BYTES
        )
        # The cage's user connects; the name cannot be guessed.
        os.chmod(self.path, 0o666)  # noqa: S103
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= _MAX_AT_ONCE:
            writer.close()
            return
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError, TimeoutError):
            try:
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                host, port = self._wanted(head)
                async with asyncio.timeout(_CONNECT_S):
                    up_reader, up_writer = await self._dial(host, port)
            except (HarnessError, ValueError, asyncio.LimitOverrunError) as error:
                log.warning("egress.refused", why=str(error)[:200])
                writer.write(_refusal(error))
                await writer.drain()
                return
            except (OSError, TimeoutError) as error:
                writer.write(_answer(502, f"cannot be reached: {error}"))
                await writer.drain()
                return
            with contextlib.closing(up_writer):
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    def _wanted(self, head: bytes) -> tuple[str, int]:
        """Return where a CONNECT leads; raises `Denied` or `ValueError`."""
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        if method != "CONNECT":
            raise ValueError("only CONNECT is spoken here: use https")
        host, port = _split(target)
        if (host, port) not in self._allowed:
            raise Denied(f"the tool did not declare the host {host}:{port}", code="EGRESS_DENIED")
        return host, port


def _split(entry: str) -> tuple[str, int]:
    """Read `host` or `host:port`, `[::1]:port` included."""
    text = entry.strip().lower()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not port.isdecimal()):
        raise ValueError(f"{entry!r} is neither a host nor host:port")
    return host.rstrip("."), int(port or _HTTPS)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
        target.write_eof()


def _refusal(error: Exception) -> bytes:
    return _answer(403 if isinstance(error, HarnessError) else 400, str(error))


def _answer(status: int, text: str) -> bytes:
    body = text.encode("ascii", "replace")[:500]
    head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
