"""Skills, as the client returns them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from harness_api.client.types.view import View


class Skill(View):
    """One version of a skill."""

    id: str
    name: str
    version: int
    spec: dict[str, Any]
    digest: str
    created_at: datetime
    created_by: str
    warnings: tuple[str, ...] = ()
