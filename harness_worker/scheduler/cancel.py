"""Cancellation below a run: children are stopped when their parent was asked to stop or has ended.

Level by level: a child that is asked to stop makes its own children forsaken, and the next tick
finds them. A child is told like any run: by its row, and its worker by a signal.
"""

from __future__ import annotations

import time

import structlog

from harness_common.commands import cancel_run
from harness_common.core.errors import HarnessError
from harness_common.core.ids import encode
from harness_worker.scheduler.looper import Look, Shared

log = structlog.get_logger()


class CancelLoop:
    """Stops forsaken children."""

    name = "cancel"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._channel = shared.signals()

    async def run_once(self, look: Look) -> int:
        """Ask forsaken children to stop, up to a batch, and never for longer than the leader may go
        without renewing its term. What is left is done at the next tick.
        """
        if not look.forsaken:
            return 0
        shared = self._shared
        batch, stopped = shared.settings.scheduler.batch, 0
        until = time.monotonic() + shared.settings.scheduler.leader_renew_s
        rows = await shared.db.fetch("forsaken", {"batch": batch, "skipped": shared.skipped()})
        for row in rows:
            if stopped and time.monotonic() > until:
                break
            parent = encode("run", row["parent_run_id"])
            reason = f"its parent {parent} is {row['parent_status']}"
            try:
                asked = await cancel_run(
                    shared.db, row["tenant_id"], row["run_id"], by=parent, reason=reason
                )
            except (HarnessError, KeyError, TypeError, ValueError) as error:
                # One that cannot be stopped must not hold up its siblings.
                log.error("run.skipped", run_id=encode("run", row["run_id"]), error=repr(error))
                shared.skip(row["run_id"])
                continue
            stopped += 1
            if asked.claimed_by is not None and self._channel is not None:
                await self._channel.cancel(asked.claimed_by, row["run_id"])
        shared.count("children_cancelled", stopped)
        return stopped
