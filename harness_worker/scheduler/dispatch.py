"""Ringing again: a doorbell that nobody answered in time is rung once more, with backoff.
Duplicates are harmless.
"""

from __future__ import annotations

from harness_common.broker.publish import Doorbell
from harness_worker.scheduler.looper import Look, Shared


class DispatchLoop:
    """Rings for runs that are ready and unclaimed."""

    name = "dispatch"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def run_once(self, look: Look) -> int:
        """Ring for every overdue doorbell, up to a batch."""
        if look.due_in_s is None or look.due_in_s > 0:
            return 0
        shared, config = self._shared, self._shared.settings.scheduler
        rows = await shared.db.fetch(
            "ring",
            {
                "term": shared.term,
                "batch": config.batch,
                "first_s": max(config.ring_after_s, 3 * look.queue_age_s),
                "longest_s": max(config.ring_after_max_s, 3 * look.queue_age_s),
            },
        )
        for row in rows:
            shared.bell.ring(
                Doorbell(
                    row["tenant_id"], row["id"], row["version"], row["queue"], row["priority"],
                    row["rings"], row["trace_id"],
                )
            )  # fmt: skip
        shared.count("doorbells_rung_again", len(rows))
        return len(rows)
