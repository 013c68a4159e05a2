"""The pool of a worker process, with Celery's own event loop beside it."""

from __future__ import annotations

import threading

import pytest
from kombu.asynchronous import Hub

from harness_worker.pool import TaskPool


class Bare(TaskPool):
    """The pool alone: nothing is begun with its loop."""

    on_loop_start = None
    on_loop_stop = None


@pytest.mark.parametrize(("places", "wakes"), [(1, True), (3, False)])
def test_a_process_that_was_full_asks_for_doorbells_again_at_once(places, wakes):
    """Celery looks whether there is a place only when something wakes it: a timer, up to 1 s."""
    hub, done = Hub(), threading.Event()
    pool = Bare(limit=places)
    pool.start()
    try:
        pool.register_with_event_loop(hub)
        pool.on_apply(lambda: None, (), {}, lambda _: done.set(), lambda *_: None)
        assert done.wait(10)
    finally:
        pool.stop()  # drains: the task is over then
        woken = len(hub._ready)
        hub.close()
    assert bool(woken) is wakes
