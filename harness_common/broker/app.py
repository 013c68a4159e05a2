"""The Celery app: one task, acknowledged early, JSON only, nothing of Celery's for time, results or
cancelling.

Imported by everything that rings (API, scheduler, workers), by the worker's command line and by
Flower. The values come from measurements; see docs/adr/0002.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Celery

from harness_common.broker.queues import STEP_TASK, step_queue
from harness_common.settings import Settings, settings

__all__ = ["PRIORITY_STEPS", "STEP_TASK", "app", "celery_config", "make_app", "step_queue"]

PRIORITY_STEPS: Final = (0, 3, 6, 9)


def celery_config(config: Settings) -> dict[str, Any]:
    """Build the Celery configuration from ours."""
    names = dict.fromkeys(("steps.default", *config.worker.queues))
    broker_url = config.broker_url or config.require_redis_url()
    on_redis = broker_url.startswith("redis")
    return {
        "broker_url": broker_url,
        "broker_transport": "harness_common.broker.redis_transport:Transport" if on_redis else None,
        "worker_disable_prefetch": on_redis,
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
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
        "broker_transport_options": {
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "health_check_interval": 25,
            "socket_keepalive": True,
            "max_connections": 64,
            "visibility_timeout": 3600,
            "queue_order_strategy": "priority",
            "priority_steps": list(PRIORITY_STEPS),
            "global_keyprefix": f"{config.redis.prefix}:",
        },
        "timezone": "UTC",
    }


def make_app(config: Settings) -> Celery:
    """Build an app around a configuration."""
    made = Celery("harness", set_as_current=True)
    made.conf.update(celery_config(config))
    return made


app = make_app(settings())
"""The app of this process, for `celery -A harness_common.broker.app`."""
