"""Who leads: one row with a term. A standby takes over when the holder's time runs out; Postgres
time on both sides.
"""

from __future__ import annotations

import time
from uuid import UUID

from harness_common.core.errors import TermOver
from harness_common.store.db import Database


class Leadership:
    """Holds or seeks the one leadership of schedulers."""

    def __init__(self, db: Database, holder: UUID, holder_name: str, ttl_s: float) -> None:
        self._db = db
        self._params = {
            "name": "scheduler",
            "holder": holder,
            "holder_name": holder_name,
            "ttl_s": ttl_s,
        }
        self.term: int | None = None
        self._ttl_s = ttl_s
        self._renew_at = 0.0

    @property
    def is_due(self) -> bool:
        """Tell whether it is time to seek or renew the leadership."""
        return time.monotonic() >= self._renew_at

    def lose(self) -> None:
        """Take the term for over, and seek anew at once."""
        self.term, self._renew_at = None, 0.0

    async def seek(self) -> int | None:
        """Become or stay leader; returns the term, or None while another leads."""
        row = await self._db.fetch_one("lead", self._params)
        self.term = row["term"] if row else None
        self._renew_at = time.monotonic() + self._ttl_s / 4
        return self.term

    async def keep(self) -> None:
        """Renew in time while a tick goes on: one that outlasts its term would begin another, with
        loops that remember nothing, each time. Raises `TermOver` when it is not ours any more.
        """
        term = self.term
        if self.is_due and await self.seek() != term:
            raise TermOver("another term has begun", term=term)

    async def resign(self) -> None:
        """Let a standby take over at once."""
        if self.term is not None:
            await self._db.fetch(
                "resign",
                {
                    "name": "scheduler",
                    "holder": self._params["holder"],
                    "term": self.term,
                },
            )
            self.term = None
