"""Turning values into HTML: one Jinja environment that escapes everything, and its filters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness_api.console.static import url_of

_TEMPLATES: Final = Path(__file__).parent / "templates"
_CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal sequences and control characters but tab and line feed."""
_ODD: Final = re.compile(
    "[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Marks that turn the direction of text, by which one thing can be made to look like another, and
characters that nobody sees, in which words can be hidden from who approves them.
"""
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
LONG: Final = 20_000
"""How many characters of a text are shown."""


def clean(text: object) -> str:
    """Take out of a text what could deceive its reader; the escaping is Jinja's."""
    shown = str(text)
    if shown.isprintable() and shown.isascii():  # almost all of what a page shows
        return shown
    return _ODD.sub("\ufffd", _CONTROL.sub("", shown))


def short(text: object, most: int = 120) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(clean(text)[: most * 4].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def long(text: object, most: int = LONG) -> str:
    """Return a text, cut where it is too long for a page."""
    shown = clean(str(text)[: most + 1])
    return shown if len(shown) <= most else shown[:most] + f"\n… cut after {most:,} characters"


def span(seconds: float | None) -> str:
    """Write a length of time with its two largest units."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    left, parts = int(seconds), []
    for size, name in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {name}")
            left %= size
    return " ".join(parts[:2])


def ms(value: float | None) -> str:
    """Write milliseconds."""
    return span(None if value is None else value / 1000)


def moment(value: object) -> datetime | None:
    """Read a time that is one, or the text of one."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def ago(value: object) -> str:
    """Say how long ago a time was, or how far ahead it is."""
    when = moment(value)
    if when is None:
        return "-"
    seconds = (datetime.now(UTC) - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    left = abs(seconds)
    size, name = next(((s, n) for s, n in _UNITS if left >= s), (1, "s"))
    words = f"{int(left // size)} {name}"
    return f"{words} ago" if seconds > 0 else f"in {words}"


def iso(value: object) -> str:
    """Write a time as machines read it."""
    when = moment(value)
    return when.astimezone(UTC).isoformat() if when else ""


def clock(value: object) -> str:
    """Write a time in full, in UTC."""
    when = moment(value)
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if when else "-"


def money(value: float | None) -> str:
    """Write US dollars: cents, and more digits of what is less than one."""
    if value is None:
        return "-"
    if value == 0:
        return "$0"
    return f"${value:,.2f}" if abs(value) >= 1 else f"${value:.4f}"


def number(value: float | None) -> str:
    """Write a number with thousands apart."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def pretty(value: object) -> str:
    """Write JSON with indents."""
    return long(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def compact(value: object) -> str:
    """Write JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def words(name: object) -> str:
    """Write a name as words: waiting_approval becomes waiting approval."""
    return str(name).replace("_", " ")


def took(run: Any) -> float | None:  # noqa: ANN401 - a run as it is shown
    """Return the seconds from a run's start to its end, or to now."""
    if run.started_at is None:
        return None
    ended: datetime = run.finished_at or datetime.now(UTC)
    started: datetime = run.started_at
    return max(0.0, (ended - started).total_seconds())


def urlquery(values: Mapping[str, Any]) -> str:
    """Write a query string; a list is given value by value, what is empty is left out."""
    return urlencode({k: v for k, v in values.items() if v not in (None, "", [])}, doseq=True)


def dict_with(values: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """Return a copy with one more entry."""
    return {**values, name: value}


def dict_without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy without some entries."""
    return {k: v for k, v in values.items() if k not in names}


_FILTERS: Final = (
    *(clean, short, long, span, ms, ago, iso, clock, money, number, pretty, words),
    *(compact, urlquery, dict_with, dict_without, took),
)


def make_environment() -> Environment:
    """Build the environment; a name that is not given is an error, not an empty text."""
    env = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    for function in _FILTERS:
        env.filters[function.__name__] = function
    env.globals["asset"] = url_of
    return env


def _finalize(value: Any) -> Any:  # noqa: ANN401 - whatever a template prints
    """Clean every plain text that a template prints; markup of our own passes."""
    return clean(value) if type(value) is str else value


ENV: Final = make_environment()


def render(request: Request, template: str, **values: Any) -> str:
    """Render a template. `nonce` is what the answer's Content-Security-Policy allows."""
    nonce = request.scope["state"]["csp_nonce"]
    return ENV.get_template(template).render(request=request, nonce=nonce, **values)
