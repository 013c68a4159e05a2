"""What agents remember between runs: how an agent asks for it, and what a tool may do with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, Field

from harness_common.core.message import Json

Kind = Literal["preference", "fact", "decision", "instruction"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""What may be remembered; there is no kind for anything else."""
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
MAX_CHARS: Final = 500
"""A fact is a sentence or two, never a page."""
MAX_QUERY_CHARS: Final = 2_000


class MemorySpec(BaseModel):
    """What an agent remembers, and what of it its runs are told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: Namespace | None = None
    """Whose memory it is: agents of one namespace share it. None: the agent's own name."""
    recall: Annotated[int, Field(ge=0, le=50)] = 8
    """How many facts a run is told at most; 0 leaves it to `memory_search`."""
    recall_tokens: Annotated[int, Field(ge=0, le=20_000)] = 800
    """How many tokens they may take, by estimate."""
    kinds: tuple[Kind, ...] = KINDS
    """What the agent may save."""
    expires_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """How long a fact lives that the agent saves; None: as the settings say."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A fact as a search gives it."""

    id: str
    text: str
    kind: str
    trust: str
    """`trusted`, `approved` (a person let it be saved by a run that had read untrusted content) or
    `untrusted`.
    """
    shared: bool
    """Whether every user of the namespace sees it."""
    created_at: datetime
    expires_at: datetime | None
    score: float
    by: tuple[str, ...]
    """What found it: `words`, `meaning`."""
    provenance: Json = None


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a fact that was to be kept."""

    id: str
    made: bool
    """False when it was known already."""
    trust: str
    expires_at: datetime | None


class Memory(Protocol):
    """The memory that a running tool may use: that of its run's user in its agent's namespace."""

    async def search(self, query: str, limit: int) -> list[Remembered]:
        """Return the facts that fit best, the best first."""
        ...

    async def save(
        self, text: str, *, kind: str, quote: str, expires_days: int | None = None
    ) -> Saved:
        """Keep a fact that rests on `quote`, which a user or a tool has said in this session.

        Raises `Denied` for what may not be kept, and says why.
        """
        ...

    async def forget(self, memory_id: str) -> bool:
        """Delete a fact of the user for good; False when there is none of that id."""
        ...
