"""What a worker process remembers of prompts: how far estimates are off, and which parts of prompts
are stored already.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from harness_common.core.tokens import Calibration

_KEPT: Final = 20_000


@dataclass(slots=True)
class ContextMemory:
    """Of one process; losing it costs a statement and a less exact first estimate."""

    calibration: Calibration = field(default_factory=Calibration)
    _stored: OrderedDict[tuple[UUID, str], None] = field(default_factory=OrderedDict)

    def is_stored(self, tenant_id: UUID, digest: str) -> bool:
        """Tell whether a part is known to be stored."""
        return (tenant_id, digest) in self._stored

    def note_stored(self, tenant_id: UUID, digest: str) -> None:
        """Remember that a part is stored; the oldest are forgotten first."""
        self._stored[tenant_id, digest] = None
        while len(self._stored) > _KEPT:
            self._stored.popitem(last=False)
