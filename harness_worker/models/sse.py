"""Decode Server-Sent Events from bytes, by hand, because thousands of streams share one core.

Used by every provider that streams. Follows
https://html.spec.whatwg.org/multipage/server-sent-events.html, except that an event without its
final blank line still counts at the end of the stream (`flush`): some servers leave it out.
"""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024


class SseDecoder:
    """Turns chunks of one stream into events; a chunk may end anywhere, even inside a character or
    a line end.
    """

    __slots__ = ("_data", "_event", "_held", "_size", "_started")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._data: list[bytes] = []
        self._event = b""
        self._size = 0
        self._started = False

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes]]:
        """Take a chunk and return the events it completes, as (event name, data).

        Raises `ValueError` when one event is larger than `MAX_EVENT_BYTES`.
        """
        self._size += len(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            # Kept as pieces: joining at every chunk would cost the square of a long line.
            self._held.append(chunk)
            self._check_size()
            return []
        events: list[tuple[bytes, bytes]] = []
        for line in self._lines(chunk):
            if not line:
                if self._data:
                    events.append((self._event, b"\n".join(self._data)))
                    self._data = []
                self._event = b""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._event = line[6:].strip()
        self._size = sum(map(len, self._held)) + sum(map(len, self._data))
        self._check_size()
        return events

    def feed_data(self, chunk: bytes) -> list[bytes]:
        """Take a chunk and return the data of the events it completes, without their names.

        Does what `feed` does, several times as fast where events are what every server sends: one
        line of data, at most with a name before it.
        """
        if self._data or not self._started or b"\r" in chunk or len(chunk) > MAX_EVENT_BYTES:
            return [data for _, data in self.feed(chunk)]
        end = chunk.rfind(b"\n\n")
        if end < 0 or self._size > MAX_EVENT_BYTES:
            return [data for _, data in self.feed(chunk)]
        if self._held:
            held = b"".join(self._held)
            if b"\r" in held:
                return [data for _, data in self.feed(chunk)]
            buffer, end = held + chunk, end + len(held)
        else:
            buffer = chunk
        found = _plain_events(buffer[:end])
        if found is None:
            return [data for _, data in self.feed(chunk)]
        rest = buffer[end + 2 :]
        self._held = [rest] if rest else []
        self._event = b""
        self._size = len(rest)
        return found

    def flush(self) -> list[tuple[bytes, bytes]]:
        """Return the event that the end of the stream left without a blank line, if any."""
        return self.feed(b"\n\n")

    def _lines(self, chunk: bytes) -> list[bytes]:
        buffer = b"".join((*self._held, chunk))
        if not self._started:
            self._started = True
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
        half = b""
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):  # maybe the first half of CR LF: decided with the next chunk
                half, buffer = b"\r", buffer[:-1]
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = buffer.split(b"\n")
        rest = lines.pop() + half
        self._held = [rest] if rest else []
        return lines

    def _check_size(self) -> None:
        if self._size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the stream is larger than {MAX_EVENT_BYTES} bytes")


def _plain_events(block: bytes) -> list[bytes] | None:
    """Return the data of events of one data line each; None when one of them has another form."""
    found: list[bytes] = []
    for event in block.split(b"\n\n"):
        data = event
        if data[:6] == b"event:":
            data = data[data.find(b"\n") + 1 :]
        if data[:6] != b"data: " or b"\n" in data:
            return None
        found.append(data[6:])
    return found
