"""How Flower hears events, and what ends it when it no longer does.

Flower's own loop waits twice as long after each failure, without a bound (512 s were seen), and a
connection that died in silence is never noticed. Here the wait is short, and `Watch` ends the
process when workers answer a question although none of their events came for a while: whoever
supervises it starts it again.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

import structlog
from celery import Celery
from celery.events import EventReceiver
from flower.events import Events

log = structlog.get_logger()

RECONNECT_S: Final = 2.0
PING_S: Final = 2.0
EXIT_BLIND: Final = 70
_ONCE: Final = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


class _Receiver(EventReceiver):
    """Leaves it to `Hearing` to try again: kombu would wait up to 30 s."""

    connect_max_retries = 1


class Hearing(Events):
    """The thread that takes events from the broker."""

    def __init__(self, capp: Celery, **more: Any) -> None:
        super().__init__(capp, **more)
        self.heard_at = time.monotonic()

    def run(self) -> None:
        """Listen for as long as the process lives."""
        while True:
            try:
                with self.capp.connection(transport_options=_ONCE) as connection:
                    receiver = _Receiver(connection, handlers={"*": self.on_event}, app=self.capp)
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as error:  # noqa: BLE001 - whatever it was, listening goes on
                log.warning("flower.lost_broker", error=f"{type(error).__name__}: {error}"[:300])
            time.sleep(RECONNECT_S)

    def on_event(self, event: dict[str, Any]) -> None:
        """Keep an event, and when it came."""
        self.heard_at = time.monotonic()
        super().on_event(event)


class Watch:
    """Ends the process when it is blind."""

    def __init__(self, capp: Celery, hearing: Hearing, blind_after_s: float) -> None:
        self._capp = capp
        self._hearing = hearing
        self._blind_after_s = blind_after_s

    async def look(self) -> None:
        """Ask the workers when nothing was heard for a while. A broker that is away, or a platform
        without workers, is no blindness.
        """
        silent_s = time.monotonic() - self._hearing.heard_at
        if silent_s < self._blind_after_s:
            return
        answers = await self._hearing.io_loop.run_in_executor(None, self._ping)
        if answers and time.monotonic() - self._hearing.heard_at >= self._blind_after_s:
            log.critical("flower.blind", silent_s=round(silent_s, 1), workers=answers)
            os._exit(EXIT_BLIND)

    def _ping(self) -> int:
        try:
            return len(self._capp.control.ping(timeout=PING_S))
        except Exception as error:  # noqa: BLE001 - the broker is away
            log.warning("flower.ping_failed", error=f"{type(error).__name__}: {error}"[:300])
            return 0
