"""Sends ended spans to a collector from a thread of its own, in batches.

The queue is bounded: while the collector is slow or away, what does not fit is dropped and counted,
and nobody waits. Nothing but spans can be lost here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

import structlog

from harness_common.telemetry.traces import Span

Outcome = Literal["sent", "dropped", "failed"]
_BATCH: Final = 512
_TELL_EVERY_S: Final = 60.0

log = structlog.get_logger()


def count_nothing(outcome: Outcome, n: int) -> None:
    """Count for nobody."""
    del outcome, n


class SpanQueue:
    """A bounded queue of spans and the thread that empties it."""

    def __init__(
        self,
        send: Callable[[Sequence[Span]], bool],
        *,
        most: int = 8_192,
        every_s: float = 1.0,
        count: Callable[[Outcome, int], None] = count_nothing,
        hang_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`send` returns False when a batch is lost; `hang_up` makes it give up."""
        self._send, self._hang_up, self._count = send, hang_up, count
        self._most, self._every_s = most, every_s
        self._spans: deque[Span] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._told_at = -_TELL_EVERY_S
        self.lost = 0
        """Spans dropped or refused so far."""
        self._thread = threading.Thread(target=self._loop, name="spans", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Send a span soon, or drop it when the queue is full."""
        if len(self._spans) >= self._most or self._closing:
            self.lost += 1
            self._count("dropped", 1)
            return
        self._spans.append(span)
        if len(self._spans) >= _BATCH:
            self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._hang_up()

    def _loop(self) -> None:
        while not self._closing:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(_BATCH, len(self._spans)))]
            try:
                sent = self._send(batch)
            except Exception as error:  # noqa: BLE001 - whatever it was, these spans are lost
                log.debug("spans.not_sent", error=type(error).__name__)
                sent = False
            if sent:
                self._count("sent", len(batch))
                continue
            self.lost += len(batch)
            self._count("failed", len(batch))
            self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told_at >= _TELL_EVERY_S:
            self._told_at = time.monotonic()
            log.warning("spans.not_sent", lost=self.lost, queued=len(self._spans))
