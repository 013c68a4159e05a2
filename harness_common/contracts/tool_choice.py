"""Whether the model may, must or must not call a tool, as an agent says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Choice = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""`auto`, `required` (some tool), `none` (no tool), or the name of the one tool to call."""


class ToolChoice(BaseModel):
    """A choice for the first answer of a run, and one for all the others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: Choice = "auto"
    each: Choice = "auto"
    """For the answers after the first. A tool that is forced each time never lets the run end by
    itself: `max_turns` does.
    """

    def now(self, *, first: bool) -> str:
        """Return the choice for an answer."""
        return self.first if first else self.each

    def unknown(self, tools: Sequence[str]) -> str | None:
        """Return a tool that is named here and is not among `tools`; None when there is none."""
        for choice in (self.first, self.each):
            if choice not in {"auto", "required", "none"} and not _has(tools, choice):
                return choice
        return None


def _has(tools: Sequence[str], name: str) -> bool:
    return any(
        name == tool or (tool.endswith("__*") and name.startswith(tool[:-1])) for tool in tools
    )
