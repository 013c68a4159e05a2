"""Celery's events for Flower, sent by one thread.

Tasks end in the loop's thread, and Celery's dispatcher sends what waits there as soon as 24 events
do. That would read and write a connection that the main thread reads, and a broker that is slow
would hold up every run of the process.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from celery.app.events import Events as CeleryEvents
from celery.events import EventDispatcher

_KEPT = 1000
"""Messages of events that are kept while the broker is away; the oldest go first."""


class Dispatcher(EventDispatcher):
    """Leaves every event of a task to the main thread, which sends those that wait as one
    message.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "buffer_limit": sys.maxsize})
        self._outbound_buffer: deque[Any] = deque(maxlen=_KEPT)


class Events(CeleryEvents):
    """What `app.events` is."""

    dispatcher_cls = f"{__name__}:Dispatcher"
