"""The name of the one Celery task, and how its queues are declared: alike by whoever rings and
whoever listens. Apart from `app`, which wants to know its broker when it is imported.
"""

from __future__ import annotations

from typing import Final

from kombu.entity import Exchange, Queue

STEP_TASK: Final = "harness.step"


def step_queue(name: str) -> Queue:
    """Declare a queue of doorbells. Whoever rings and whoever listens declare it alike."""
    return Queue(name, Exchange(name), routing_key=name, queue_arguments={"x-max-priority": 10})
