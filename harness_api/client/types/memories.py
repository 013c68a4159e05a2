"""What agents remember, as the client returns it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from harness_api.client.types.view import View


class Memory(View):
    """A fact that is remembered."""

    id: str
    text: str
    kind: str
    trust: str
    shared: bool
    created_at: datetime
    expires_at: datetime | None = None
    provenance: Any = None
    namespace: str | None = None
    user_id: str | None = None


class FoundMemory(Memory):
    """A fact that a search found, and how."""

    score: float
    by: list[str]


class FoundMemories(View):
    """What a search found, the best first."""

    data: list[FoundMemory]
    meaning: bool


class Forgotten(View):
    """How many facts were deleted, or would be."""

    count: int
    more: bool
    dry_run: bool
