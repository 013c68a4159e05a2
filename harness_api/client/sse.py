"""Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Works on bytes: only CR, LF and CRLF end a line here, whatever Unicode thinks of U+2028.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    event: str
    data: str
    id: str | None = None


class Parser:
    """Takes bytes as they come and gives the frames that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, list[str]] = {}

    def feed(self, chunk: bytes) -> list[Frame]:
        """Add bytes; return the frames that end in them."""
        buffer = self._rest + chunk
        # A CR at the end may be the first half of a CRLF.
        held = b"\r" if buffer.endswith(b"\r") else b""
        text = buffer[: len(buffer) - len(held)]
        *lines, last = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = last + held
        return [frame for line in lines if (frame := self._line(line)) is not None]

    def _line(self, raw: bytes) -> Frame | None:
        line = raw.decode("utf-8", errors="replace")
        if line:
            name, _, value = line.partition(":")
            if name:  # else a comment
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return Frame(
            event=fields.get("event", ["message"])[-1],
            data="\n".join(fields["data"]),
            id=fields["id"][-1] if "id" in fields else None,
        )


async def frames(chunks: AsyncIterator[bytes]) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a body. One that is cut off in the middle is dropped."""
    parser = Parser()
    async for chunk in chunks:
        for frame in parser.feed(chunk):
            yield frame
