"""Doorbells out of order: messages taken out of the broker and put back late, and rung by us for
versions that were, are and will be.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import psycopg
import redis

from tests.chaos.stack import ChaosStack

_PATTERN = "harness:steps.default*"


class Doorbells:
    """A bell of the runner's own."""

    def __init__(self, stack: ChaosStack) -> None:
        self._stack = stack
        # Read where the app is made: when its module is imported.
        os.environ["HARNESS_REDIS_URL"] = stack.valkey.url
        from harness_common.broker.app import make_app
        from harness_common.broker.publish import Bell
        from harness_common.settings import Settings

        self._bell = Bell(make_app(Settings(redis_url=stack.valkey.url)))
        self._lock = threading.Lock()

    def active(self, chance: random.Random, count: int) -> list[dict[str, Any]]:
        """Pick runs that somebody may be about to work on."""
        try:
            rows = self._stack.ask(
                "SELECT tenant_id, id, version, queue, priority, rings FROM runs "
                "WHERE finished_at IS NULL ORDER BY updated_at DESC LIMIT 100"
            )
        except psycopg.Error:
            return []
        return chance.sample(rows, min(count, len(rows)))

    def ring(self, run: dict[str, Any], version: int) -> None:
        """Send one more doorbell."""
        from harness_common.broker.publish import Doorbell

        with self._lock:
            self._bell.ring(
                Doorbell(
                    run["tenant_id"], run["id"], max(0, version), run["queue"], run["priority"],
                    run["rings"] + 1,
                )
            )  # fmt: skip

    def hold_back(self, seconds: float, chance: random.Random) -> int:
        """Take every message that waits for `seconds` long and put them back in another order."""
        taken: list[tuple[bytes, bytes]] = []
        try:
            with redis.Redis.from_url(self._stack.valkey.url, socket_timeout=2) as client:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    for key in client.scan_iter(_PATTERN):
                        taken += [(key, item) for item in client.rpop(key, 50) or []]
                    time.sleep(0.005)
                chance.shuffle(taken)
                for key, item in taken:
                    client.lpush(key, item)
        except redis.RedisError:
            return len(taken)
        return len(taken)

    def close(self) -> None:
        """Send what is queued and end."""
        self._bell.close()
