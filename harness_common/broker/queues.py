"""The name of the one Celery task, and how its queues are declared: alike by whoever rings and
whoever listens. Apart from `app`, which wants to know its broker when it is imported.
"""

from __future__ import annotations

from typing import Final

from celery import Celery
from kombu.entity import Exchange, Queue

STEP_TASK: Final = "harness.step"
_LOWEST: Final = 9


def step_queue(name: str) -> Queue:
    """Declare a queue of doorbells. Whoever rings and whoever listens declare it alike."""
    return Queue(name, Exchange(name), routing_key=name, queue_arguments={"x-max-priority": 10})


def is_amqp(broker_url: str) -> bool:
    """Tell whether doorbells go over RabbitMQ, where the highest number goes first."""
    return broker_url.startswith(("amqp", "pyamqp"))


def wire_priority(app: Celery, priority: int) -> int:
    """Return the priority as the broker counts: for us, as in Redis, 0 goes first."""
    return _LOWEST - priority if is_amqp(str(app.conf.broker_url)) else priority
