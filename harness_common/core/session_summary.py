"""What a session remembers of its runs: a line for each, less than 2 KB in all.

Made by code from what was asked and answered; the same runs give the same text. The dialogue itself
is in the messages.
"""

from __future__ import annotations

from typing import Final

from harness_common.core.tokens import text_bytes

MAX_BYTES: Final = 2_047
"""The column refuses 2 KB and more."""
_ASKED_CHARS: Final = 200
_SAID_CHARS: Final = 400
_RUN_CHARS: Final = 12


def session_summary(previous: str | None, run: str, asked: str, said: str) -> str:
    """Add a run's line to a summary, in place of the one it has; the oldest lines go first.

    `said` is the run's answer, or how far it is.
    """
    mark = f"[{run[-_RUN_CHARS:]}] "
    line = f"{mark}{_cut(asked, _ASKED_CHARS)} → {_cut(said, _SAID_CHARS)}"
    lines = [one for one in (previous or "").split("\n") if one and not one.startswith(mark)]
    lines.append(line)
    while len(lines) > 1 and text_bytes("\n".join(lines)) > MAX_BYTES:
        lines.pop(0)
    return "\n".join(lines).encode("utf-8", "replace")[:MAX_BYTES].decode(errors="ignore")


def _cut(text: str, most: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1] + "…"
