"""The Celery app: one task, acknowledged early, JSON only, nothing of Celery's for time, results or
cancelling.

Imported by everything that rings (API, scheduler, workers), by the worker's command line and by
Flower. The values come from measurements; see docs/adr/0002.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Celery

from harness_common.broker.queues import STEP_TASK, is_amqp, step_queue
from harness_common.redis_url import is_sentinel, parse_sentinel
from harness_common.settings import Settings, settings

__all__ = ["PRIORITY_STEPS", "STEP_TASK", "app", "celery_config", "make_app", "step_queue"]

_TRANSPORTS: Final = "harness_common.broker.redis_transport"
_EVENTS: Final = "harness_common.broker.events:Events"

PRIORITY_STEPS: Final = (0, 3, 6, 9)


def _of_broker(broker_url: str, config: Settings) -> dict[str, Any]:
    """Build what depends on the kind of broker."""
    on_redis = broker_url.startswith("redis")
    options: dict[str, Any] = {
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "health_check_interval": 25,
        "socket_keepalive": True,
        "max_connections": 64,
        "visibility_timeout": 3600,
        "queue_order_strategy": "priority",
        "priority_steps": list(PRIORITY_STEPS),
        "global_keyprefix": f"{config.redis.prefix}:",
    }
    transport = f"{_TRANSPORTS}:Transport" if on_redis else None
    if is_amqp(broker_url):
        options = {"write_timeout": 5}
    elif is_sentinel(broker_url):
        found = parse_sentinel(broker_url)
        bounds = {"socket_timeout": 1, "socket_connect_timeout": 1, **found.sentinel_login}
        options |= {"master_name": found.primary, "sentinel_kwargs": bounds}
        broker_url, transport = found.for_kombu(), f"{_TRANSPORTS}:SentinelTransport"
    return {
        "broker_url": broker_url,
        "broker_transport": transport,
        "broker_transport_options": options,
        "worker_disable_prefetch": transport is not None,
    }


def celery_config(config: Settings) -> dict[str, Any]:
    """Build the Celery configuration from ours."""
    names = dict.fromkeys(("steps.default", *config.worker.queues))
    return {
        **_of_broker(config.broker_url or config.require_redis_url(), config),
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        # Restoring it would wait for RabbitMQ's answer in the thread that the runs live in.
        "worker_enable_prefetch_count_reduction": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_create_missing_queues": False,
        "task_queues": [step_queue(name) for name in names],
        "task_default_queue": "steps.default",
        "task_default_priority": 6,
        "task_track_started": False,
        "task_send_sent_event": config.worker.task_events,
        "worker_send_task_events": config.worker.task_events,
        "worker_enable_remote_control": True,
        "worker_soft_shutdown_timeout": 0,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0, "interval_max": 0.2},
        "timezone": "UTC",
    }


def make_app(config: Settings) -> Celery:
    """Build an app around a configuration."""
    made = Celery("harness", set_as_current=True, events=_EVENTS)
    made.conf.update(celery_config(config))
    return made


app = make_app(settings())
"""The app of this process, for `celery -A harness_common.broker.app`."""
