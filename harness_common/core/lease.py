"""Names and rules of the right to work on a run.

The lease (Redis) keeps two workers from doing the same work; the fence and claim id (Postgres) keep
a stale one from committing. Only the second is needed for safety.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

_QUARANTINE: Final = ".quarantine"


def quarantine_of(queue: str) -> str:
    """Name the queue of suspects: its worker process holds one run at a time."""
    return f"{queue}{_QUARANTINE}"


def is_quarantine(queue: str) -> bool:
    """Tell whether a queue is that of another queue's suspects."""
    return queue.endswith(_QUARANTINE)


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a claim gave its worker, and what every commit of that worker compares."""

    fence: int
    claim_id: UUID
    worker: UUID
