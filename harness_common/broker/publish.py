"""Ringing doorbells: a bounded queue and one thread, so that a frozen broker never freezes an event
loop.

A doorbell that is lost, late or doubled is harmless: the scheduler rings again from `runs.wake_at`.
So `ring` never raises and never waits; when the queue is full the doorbell is dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID

import structlog
from celery import Celery
from kombu.messaging import Producer

from harness_common.broker.queues import STEP_TASK, is_amqp, step_queue, wire_priority
from harness_common.core.ids import encode
from harness_common.telemetry.traces import Place, Span, harmless, run_span, trace_of, traces

log = structlog.get_logger()
_LIMIT: Final = 100_000
_BATCH: Final = 200


_queue = lru_cache(maxsize=1_000)(step_queue)
"""Any queue that an agent names can be rung, also one that this process does not listen to."""


def urgency(priority: int, *, newcomer: bool) -> int:
    """Return how urgent the doorbell of a run that was just let in is; 0 goes first.

    The slots that are kept for tenants that run nothing are of use to a newcomer only if it does
    not stand in the broker behind the runs of all others. It is one doorbell a tenant at a time.
    """
    return 0 if newcomer else priority


@dataclass(frozen=True, slots=True)
class Doorbell:
    """Ring for this run: the argument of the one Celery task."""

    tenant_id: UUID
    run_id: UUID
    version: int
    queue: str
    priority: int
    ring: int = 1
    trace_id: str = ""
    step: int | None = None
    """The step to do, for whoever reads it in Flower; None when it is not known."""

    @property
    def task_id(self) -> str:
        """Name the message so that Flower can find the run."""
        return f"{self.run_id.hex}.v{self.version}.r{self.ring}"

    @property
    def shown(self) -> str:
        """Say what it is about, as Flower shows it and finds it: the ids are those of the API. The
        run comes last, since its id stands beside this and the end is cut off.
        """
        step = "" if self.step is None else f"step {self.step}, "
        tenant, run = encode("tenant", self.tenant_id), encode("run", self.run_id)
        return f"({step}v{self.version}, {tenant}, {run})"


class Rings(Protocol):
    """Whoever rings doorbells: `Bell` over the broker, or within one process."""

    lost: int
    """Doorbells that were not taken; the scheduler rings again."""
    works: bool
    """Whether the last ones were taken."""
    renewed: int
    """How often the connection was found broken and made anew: what is there now may have lost what
    it was given before.
    """

    def ring(self, bell: Doorbell) -> None:
        """Send one doorbell soon; never raises and never waits."""
        ...

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued, for at most `timeout_s`."""
        ...


class Bell:
    """Rings from a thread of its own over one kept connection. `close` waits for what is queued,
    bounded.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._amqp = is_amqp(str(app.conf.broker_url))
        self._queue: queue.SimpleQueue[Doorbell | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="bell", daemon=True)
        self.rung = 0
        self.lost = 0
        self.works = True
        """Whether the broker took the last doorbells."""
        self.renewed = 0
        self._thread.start()

    def ring(self, bell: Doorbell) -> None:
        """Send one doorbell soon."""
        if self._queue.qsize() >= _LIMIT:
            self.lost += 1
            return
        self._queue.put(bell)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued, for at most `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        producer = None
        open_ = True
        while open_:
            bells, open_ = self._gather()
            # RabbitMQ may have closed an idle connection: once more over a new one. Redis has a
            # pool that looks by itself.
            for attempt in (1, 2) if producer is not None and self._amqp else (2,):
                try:
                    producer = producer or self._connect()
                    self._send_all(producer, bells)
                    self.rung += len(bells)
                    self.works = True
                    break
                except Exception as error:  # noqa: BLE001 - whatever it is: not rung
                    producer = None
                    if attempt == 2:
                        self._note_lost(len(bells), error)
                    else:
                        self.renewed += 1

    def _connect(self) -> Producer:
        # No heartbeat: this thread sleeps between doorbells and could not send one.
        confirmed = {"confirm_publish": True} if self._amqp else {}
        return self._app.amqp.Producer(
            self._app.connection_for_write(heartbeat=0, transport_options=confirmed)
        )

    def _send_all(self, producer: Producer, bells: list[Doorbell]) -> None:
        with producer.batch():
            for bell in bells:
                self._send(producer, bell)

    def _note_lost(self, count: int, error: Exception) -> None:
        self.lost += count
        self.works = False
        why = f"{type(error).__name__}: {error}"[:300]
        log.warning("doorbell.lost", count=count, error=why)

    def _gather(self) -> tuple[list[Doorbell], bool]:
        """Wait for a doorbell and take those that wait behind it; False once `close` was called."""
        bells: list[Doorbell] = []
        bell = self._queue.get()
        while bell is not None:
            bells.append(bell)
            if len(bells) >= _BATCH or self._queue.empty():
                return bells, True
            bell = self._queue.get()
        return bells, False

    def _send(self, producer: object, bell: Doorbell) -> None:
        headers: dict[str, object] = {"trace_id": bell.trace_id, "ring": bell.ring}
        span = _span_of(bell) if traces.on else None
        if span is not None:
            headers["traceparent"] = span.place.traceparent()
        self._app.send_task(
            STEP_TASK,
            args=(bell.tenant_id.hex, bell.run_id.hex, bell.version),
            task_id=bell.task_id,
            producer=producer,
            queue=_queue(bell.queue),
            priority=wire_priority(self._app, bell.priority),
            headers=headers,
            argsrepr=bell.shown,
            kwargsrepr="{}",
            retry=False,
        )
        if span is not None:
            traces.end(span)


@harmless
def _span_of(bell: Doorbell) -> Span | None:
    """Begin the span of a doorbell on its way to the broker; whoever answers it links to it."""
    span = traces.start(
        "send harness.step",
        Place(trace_of(bell.run_id, bell.trace_id), run_span(bell.run_id)),
        kind="producer",
        attributes={
            "messaging.system": "celery",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": bell.queue,
            "messaging.message.id": bell.task_id,
        },
    )
    if span is not None:
        span.put(run_id=f"run_{bell.run_id.hex}", version=bell.version, ring=bell.ring)
    return span
