"""What every answer is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    """Part of an answer. `model_dump(mode="json")` gives back what the server said."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())
