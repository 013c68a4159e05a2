"""Sends ended spans to a collector from a thread of its own, in batches.

The queue is bounded: while the collector is slow or away, spans wait in it, what does not fit is
dropped and counted, and nobody else waits. Nothing but spans can be lost here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, get_args

import structlog

from harness_common.telemetry.traces import Span

Outcome = Literal["sent", "dropped", "refused"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""Counters of them begin at 0: in a series that begins with a loss Prometheus sees no increase."""
Answer = Literal["sent", "refused", "later"]
"""What became of a batch: `later` keeps it for another try."""
_BATCH: Final = 512
_LONGEST_PAUSE_S: Final = 15.0
_TELL_EVERY_S: Final = 60.0

log = structlog.get_logger()


def count_nothing(outcome: Outcome, n: int) -> None:
    """Count for nobody."""
    del outcome, n


class SpanQueue:
    """A bounded queue of spans and the thread that empties it."""

    def __init__(
        self,
        send: Callable[[Sequence[Span]], Answer],
        *,
        most: int = 8_192,
        every_s: float = 1.0,
        count: Callable[[Outcome, int], None] = count_nothing,
        hang_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`send` may take seconds; `hang_up` releases what it holds."""
        self._send, self._hang_up, self._count = send, hang_up, count
        self._most, self._every_s = most, every_s
        self._spans: deque[Span] = deque()
        self._batch: list[Span] = []
        self._wake = threading.Event()
        self._closing = False
        self._failures = 0
        self._told_at = -_TELL_EVERY_S
        self.lost = 0
        """Spans dropped or refused so far."""
        self._thread = threading.Thread(target=self._loop, name="spans", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Send a span soon, or drop it when the queue is full."""
        if self._closing or len(self._spans) + len(self._batch) >= self._most:
            self._lose("dropped", 1)
            return
        self._spans.append(span)
        if len(self._spans) >= _BATCH and not self._failures:
            self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`; the rest is dropped."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        left = len(self._spans) + len(self._batch)
        if left:
            self._lose("dropped", left)
        self._hang_up()

    def _loop(self) -> None:
        while not self._closing:
            pause_s = min(_LONGEST_PAUSE_S, self._every_s * 2**self._failures)
            self._wake.wait(pause_s)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        """Send batch by batch until nothing is left or the collector wants none now."""
        while self._batch or self._spans:
            if not self._batch:
                size = min(_BATCH, len(self._spans))
                self._batch = [self._spans.popleft() for _ in range(size)]
            answer = self._try()
            if answer == "later":
                self._failures = min(self._failures + 1, 10)
                self._tell("collector.away")
                return
            self._failures = 0
            batch, self._batch = self._batch, []
            if answer == "sent":
                self._count("sent", len(batch))
            else:
                self._lose("refused", len(batch))

    def _try(self) -> Answer:
        try:
            return self._send(self._batch)
        except Exception as error:
            log.error("spans.not_sent", error=type(error).__name__, exc_info=error)
            return "refused"

    def _lose(self, outcome: Outcome, n: int) -> None:
        self.lost += n
        self._count(outcome, n)
        self._tell("spans.lost")

    def _tell(self, what: str) -> None:
        """Log that spans are lost or late, once a minute."""
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            log.warning(what, lost=self.lost, queued=len(self._spans) + len(self._batch))
