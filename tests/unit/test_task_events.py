"""What Celery tells Flower of tasks, and from which thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kombu.connection import Connection

from harness_common.broker.app import celery_config, make_app
from harness_common.settings import Settings

CONFIG = Settings(redis_url="redis://127.0.0.1:1/0")


def test_events_of_tasks_wait_for_the_main_thread_however_many_they_are(valkey):
    """Celery sends 24 of them where the 24th arises: here, the thread that all runs share."""
    asked: list[bool] = []
    got: list[Any] = []
    app = make_app(Settings(redis_url=valkey.url))
    with app.connection_for_read() as there, app.connection_for_write() as here:
        receiver = app.events.Receiver(there, handlers={"*": got.append})
        dispatcher = app.events.Dispatcher(
            here, buffer_group=["task"], on_send_buffered=lambda: asked.append(True)
        )
        with receiver.consumer_context() as (heard, _, _):
            with suppress(TimeoutError):
                heard.drain_events(timeout=0.5)  # subscribes
            for n in range(100):
                dispatcher.send("task-started", uuid=str(n))
            assert len(asked) == 100
            assert len(dispatcher._group_buffer["task"]) == 100
            dispatcher.flush()
            while len(got) < 100:
                heard.drain_events(timeout=5)
    assert [event["uuid"] for event in got] == [str(n) for n in range(100)]


def test_events_that_cannot_be_sent_do_not_pile_up():
    app = make_app(CONFIG)
    with Connection("memory://") as conn:
        dispatcher = app.events.Dispatcher(conn)
        dispatcher.producer.publish = lambda *_, **__: 1 / 0
        for _ in range(3000):
            dispatcher.send("worker-heartbeat")
        assert len(dispatcher._outbound_buffer) == 1000


def test_a_lost_connection_changes_no_prefetch_count_from_the_thread_of_the_runs():
    """Celery raises a lowered count again whenever a task is answered, and waits there."""
    assert celery_config(CONFIG)["worker_enable_prefetch_count_reduction"] is False
