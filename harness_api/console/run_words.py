"""What goes on in a run, in words: its state, its events, what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness_api.cli.narrate import Narrator, error_text
from harness_api.client.types import Event
from harness_api.client.types import Run as SeenRun
from harness_api.schemas.runs import EventView, RunView
from harness_common.core import events as ev
from harness_common.core.run import TERMINAL
from harness_common.core.stop_reasons import in_words


@dataclass(frozen=True, slots=True)
class Line:
    """An event as it is told."""

    event: EventView
    text: str


def lines(events: Sequence[EventView]) -> list[Line]:
    """Tell events, each in a line."""
    narrator = Narrator()
    out = []
    for event in events:
        told = narrator.line(Event.model_validate(event.model_dump()))
        where = f"step {event.step}  "
        out.append(Line(event, told.removeprefix(where) or _plain(event.type)))
    return out


def _plain(kind: str) -> str:
    """Write the name of an event that says nothing more: step.started becomes step started."""
    return kind.replace(".", " ").replace("_", " ")


def tell(kind: str, payload: dict[str, Any]) -> str:
    """Tell one thing that may happen, as if it just had."""
    return Narrator().line(Event(seq=1, type=kind, at=datetime.now(UTC), payload=payload))


def why(run: RunView) -> str:
    """Say why a run is where it is: why it ended, what it waits for; empty when it just runs."""
    if run.status in TERMINAL:
        return in_words(run.stop_reason) if run.stop_reason else ""
    if run.status == "cancelling":
        return "asked to stop; it ends at the next safe point"
    waiting = run.waiting or {}
    if "text" in waiting:
        return str(waiting["text"])
    if run.status == "delayed":
        until = f"{run.not_before:%H:%M:%S} UTC" if run.not_before else "later"
        code = f" ({waiting['code']})" if waiting.get("code") else ""
        return tell(ev.RUN_DELAYED, {"why": waiting.get("for"), "until": until} | waiting) + code
    if run.status == "paused":
        return "rests until somebody resumes it"
    if run.pause_requested:
        return "asked to rest; it does after the step under way"
    return tell(ev.RUN_WAITING, waiting) if waiting else ""


def seen(run: RunView) -> SeenRun:
    """Return a run as clients see it: with its open questions and approvals read out."""
    return SeenRun.model_validate(run.model_dump(mode="json"))


def error_line(run: RunView) -> str:
    """Say what went wrong."""
    return error_text(run.error) if run.error else ""
