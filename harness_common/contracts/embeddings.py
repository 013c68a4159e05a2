"""What turns texts into vectors, so that what means the same lies close together.

Implementations live in `harness_common.embeddings`, one file each; a plugin may bring another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """One configured embedding model."""

    name: str
    """`provider/model`, kept with each vector: vectors of different names are never compared."""
    floor: float
    """The cosine similarity below which two texts have nothing to do with each other."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector a text, all of one length.

        Raises `Transient` and `Permanent`; whoever asks can go on without.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
