"""Who leads: one row with a term. A standby takes over when the holder's time runs out; Postgres
time on both sides.
"""

from __future__ import annotations

from uuid import UUID

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

    async def seek(self) -> int | None:
        """Become or stay leader; returns the term, or None while another leads."""
        row = await self._db.fetch_one("lead", self._params)
        self.term = row["term"] if row else None
        return self.term

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
