"""Flower's pages that are served: those that people read. What changes workers or runs tasks has no
route at all, so that no option and no fault of Flower's can let it through.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import structlog
from flower.api.workers import ListWorkers
from flower.urls import handlers as flower_handlers
from flower.views.broker import BrokerView
from flower.views.error import NotFoundErrorHandler
from flower.views.monitor import Healthcheck
from flower.views.tasks import TasksDataTable, TasksView, TaskView
from flower.views.workers import WorkersView, WorkerView
from tornado import web
from tornado.web import StaticFileHandler, url

from harness_common.flower.sentinel import SentinelBroker
from harness_common.redis_url import is_sentinel
from harness_common.settings import settings

log = structlog.get_logger()

_BINDING: Final = "_kombu.binding."
_INSPECT_S: Final = 0.7
_KEEP_S: Final = 5.0
_RUNG: Final = "steps."
"""How the names of queues begin that an agent may ask for."""
_SERVED: Final = frozenset(
    {WorkersView, WorkerView, TasksView, TaskView, TasksDataTable, BrokerView}
    | {ListWorkers, Healthcheck, StaticFileHandler, NotFoundErrorHandler}
)
"""`ListWorkers` is what the button "refresh" asks for."""


class QueuesView(BrokerView):
    """The page of queues: all that were ever rung or are served, also those without a worker.

    Flower knows the queues of the workers that it asked at its start, and shows no consumers for
    Redis.
    """

    _known: tuple[float, dict[str, int]] = (0.0, {})
    """When the workers were asked, and how many of them serve each queue."""

    @web.authenticated
    async def get(self) -> None:
        """Show the queues."""
        consumers = await self._consumers()
        queues: list[dict[str, Any]] = []
        try:
            broker = self.get_broker()
            names = {q.name for q in self.capp.conf.task_queues} | set(consumers)
            names |= await self._rung(broker)
            queues = await broker.queues(sorted(names))
        except Exception:
            log.exception("flower.queues_unreadable")
        for queue in queues:
            queue.setdefault("messages_ready", queue.get("messages"))
            queue.setdefault("consumers", consumers.get(queue["name"], 0))
        self.render("broker.html", broker_url=self.application.broker_uri, queues=queues)

    def get_broker(self) -> Any:  # noqa: ANN401 - one of Flower's brokers
        """Return what reads the queues."""
        address = self.application.broker_uri_with_password
        if not is_sentinel(address):
            return super().get_broker()
        options = self.capp.conf.broker_transport_options
        return SentinelBroker(address, settings().redis, options)

    async def _consumers(self) -> dict[str, int]:
        at, found = QueuesView._known
        if time.monotonic() - at >= _KEEP_S:
            found = await asyncio.get_running_loop().run_in_executor(None, self._ask_workers)
            QueuesView._known = (time.monotonic(), found)
        return found

    def _ask_workers(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        try:
            answers = self.capp.control.inspect(timeout=_INSPECT_S).active_queues() or {}
        except Exception as error:  # noqa: BLE001 - the broker is away, which the page shows anyway
            log.warning("flower.workers_silent", error=f"{type(error).__name__}: {error}"[:300])
            answers = {}
        for queues in answers.values():
            for queue in queues:
                counts[queue["name"]] = counts.get(queue["name"], 0) + 1
        return counts

    async def _rung(self, broker: Any) -> set[str]:  # noqa: ANN401 - one of Flower's brokers
        """Find the queues that doorbells were sent to: kombu keeps a key for each."""
        redis = getattr(broker, "redis", None)
        if redis is None:
            return set()
        prefix = f"{self.capp.conf.broker_transport_options['global_keyprefix']}{_BINDING}"
        keys = redis.scan_iter(match=f"{prefix}{_RUNG}*", count=1_000)
        return {key.decode().removeprefix(prefix) async for key in keys}


def restrict() -> None:
    """Leave of Flower's list of routes, which its app takes as it is, what is to be served."""
    kept: list[Any] = []
    for handler in flower_handlers:
        view = handler.handler_class if isinstance(handler, url) else handler[1]
        if view is BrokerView:
            kept.append(url(handler.regex.pattern, QueuesView, name=handler.name))
        elif view in _SERVED:
            kept.append(handler)
    flower_handlers[:] = kept
