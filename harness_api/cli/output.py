"""How things are written for people, and as JSON for programs.

Texts of models and tools are cleaned of control characters: they must not drive the terminal.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness_api.client import Run

SCRIPTED = "scripted"
_NONE = "-"


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one JSON document; views become what the server said."""
    print(json.dumps(value, default=_plain, ensure_ascii=False, indent=indent), flush=True)


def print_json_line(value: object) -> None:
    """Print one line of a stream."""
    print_json(value, indent=None)


def _plain(value: object) -> object:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def clean(text: str, *, lines: bool = True) -> str:
    """Remove what a terminal would obey; with `lines=False` make it one line."""
    kept = "".join(
        c if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Co", "Cs"} else "\ufffd"
        for c in text.replace("\r\n", "\n")
    )
    return kept if lines else " ".join(kept.split())


def short(text: str, width: int = 60) -> str:
    """Return one line of at most `width` characters."""
    line = clean(text[: 4 * width], lines=False)
    return line if len(line) <= width else line[: width - 1] + "…"


def clock(at: datetime | None) -> str:
    """Write a time in the local zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else _NONE


def usd(cost: float | None) -> str:
    """Write a cost; `?` when the model has no price."""
    if cost is None:
        return "$?"
    return f"${cost:.4f}" if cost >= 0.01 or cost == 0 else f"${cost:.6f}"


def ms(value: float | None) -> str:
    """Write a duration."""
    if value is None:
        return _NONE
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def size(size_bytes: int) -> str:
    """Write a number of bytes."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def tags(found: Mapping[str, str]) -> str:
    """Write tags."""
    return " ".join(f"{clean(k, lines=False)}={clean(v, lines=False)}" for k, v in found.items())


def scripted(flag: bool) -> str:
    """Return the label of what comes from a script, with a space before it."""
    return f" ({SCRIPTED})" if flag else ""


def spent_s(run: Run) -> float | None:
    """Return how long a run took from its creation, so far or in all."""
    if run.finished_at is None:
        return None
    return (run.finished_at - run.created_at).total_seconds()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print columns; `empty` when there is no row."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        print(empty)
        return
    widths = [max(len(r[i]) for r in [list(headers), *cells]) for i in range(len(headers))]
    for row in [[h.upper() for h in headers], *cells]:
        print("  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip())


def print_pairs(found: Mapping[str, object]) -> None:
    """Print names and values below each other; None is left out."""
    shown = {name: value for name, value in found.items() if value is not None and value != ""}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"{name.ljust(width)}  {_cell(value)}")


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return clock(value)
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value)) or _NONE
    if isinstance(value, dict):
        return clean(json.dumps(value, ensure_ascii=False, default=str), lines=False)
    return _NONE if value is None else clean(str(value), lines=False)


def say(text: str) -> None:
    """Tell people something that is no part of the output."""
    print(text, file=sys.stderr, flush=True)


def error_document(code: str, message: str, **more: Any) -> dict[str, Any]:
    """Return an error as `--json` prints it, on stderr."""
    return {"error": {"code": code, "message": message, **more}}
