"""Which runs a command over many is for when no status is named. For the CLI and the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_GOING: Final = (
    "queued", "running", "delayed",
    "waiting_approval", "waiting_input", "waiting_tool", "waiting_children",
)  # fmt: skip
DEFAULT_STATUS: Final[Mapping[str, tuple[str, ...]]] = {
    "retry": ("failed",),
    "cancel": (*_GOING, "paused"),
    "pause": _GOING,
    "resume": ("paused",),
}
