"""Kombu's Redis transport without its emulated acknowledgements, and taking several messages at
once.

A doorbell may be lost: the scheduler rings again (ARCHITECTURE, decision 2). Kombu's bookkeeping of
unacknowledged messages costs two round trips a message and redelivers what must not be redelivered
after every connection loss; here only the count is kept, for the prefetch window. `BLMPOP` (Redis
7, Valkey 8) takes up to `POP` messages in one round trip.
"""

from __future__ import annotations

from queue import Empty
from time import monotonic
from typing import Any, Final

from celery.worker import state
from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

POP: Final = 8
"""Messages taken at once. Small, so that an idle process finds some left."""


class QoS(redis.QoS):
    """Counts what is in hand; keeps nothing in Redis."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Count a message as in hand."""
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Count it as done."""
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Count it as done: a doorbell that was put back would be rung again anyway."""
        del requeue
        virtual.QoS.ack(self, delivery_tag)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Do nothing: nothing is kept that could be restored."""

    def restore_unacked(self, client: Any = None) -> None:
        """Forget what was in hand."""
        del client
        self._delivered.clear()


class Channel(redis.Channel):
    """Takes several messages in one round trip."""

    QoS = QoS

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        keys = [
            f"{self.global_keyprefix}{self._q_for_pri(queue, priority)}"
            for priority in self.priority_steps
            for queue in queues
        ]
        wait_s = self.brpop_timeout if timeout is None else timeout
        count = max(1, min(POP, self._places()))
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()  # type: ignore[assignment]
        self.client.connection.send_command(
            "BLMPOP", wait_s or 0, len(keys), *keys, "RIGHT", "COUNT", count
        )

    def _places(self) -> int:
        """Count the tasks that this process can begin at once.

        Acknowledging early frees the prefetch window before a task has a place: by that alone
        doorbells would wait here behind full places while another process idles.
        """
        window = self.qos.prefetch_count
        return window - len(state.reserved_requests) if window else POP

    def _brpop_read(self, **options: Any) -> bool:
        try:
            try:
                answer = self.client.parse_response(self.client.connection, "BLMPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
        finally:
            self._in_poll = None  # type: ignore[assignment]
            self._flush_brpop_reauth()
        if not answer:
            raise Empty
        key, items = answer
        queue = bytes_to_str(key).removeprefix(self.global_keyprefix).rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        for item in items:
            self.connection._deliver(loads(bytes_to_str(item)), queue)
        return True


class SentinelChannel(Channel, redis.SentinelChannel):
    """The same, of the primary that Sentinel names."""


class Transport(redis.Transport):
    """The transport named in `broker_transport`."""

    Channel = Channel


class SentinelTransport(redis.SentinelTransport):
    """The transport for `sentinel://`."""

    Channel = SentinelChannel
