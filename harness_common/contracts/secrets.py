"""What resolves references to secrets. Only the tool runtime does, after the model has spoken."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class Secrets(Protocol):
    """The secrets of tenants."""

    async def resolve(self, tenant_id: UUID, text: str) -> str:
        """Return `text` with each `secret://name` in it replaced by the secret's value.

        Raises `NotFound` (`SECRET_NOT_FOUND`) that names the one which the tenant does not have.
        """
        ...
