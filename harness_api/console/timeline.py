"""A run as a Gantt: where the bar of each step and call begins and ends.

The time in which nothing of the run was worked on (it waited for a person, a limit, its turn) is
drawn short, so that an hour of waiting does not turn all work into hairlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from harness_api.schemas.runs import MessageView, StepView, ToolCallView

_GAP: Final = 0.06
"""The most of the width that one time without work takes."""
_SLIVER: Final = 0.35
"""The least width of a bar, in percent."""
Interval = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Bar:
    """Where a bar is, in percent of the width."""

    x: float
    width: float


class Scale:
    """Turns times into places."""

    def __init__(self, busy: Sequence[Interval]) -> None:
        joined: list[list[datetime]] = []
        for start, end in sorted(busy):
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        worked = sum((end - start).total_seconds() for start, end in joined) or 1.0
        self.gaps: list[tuple[float, float]] = []
        """Where time is drawn short: the place in percent, and how many seconds it stands for."""
        self._points: list[tuple[datetime, float]] = []
        at = 0.0
        for index, (start, end) in enumerate(joined):
            if index:
                idle_s = (start - joined[index - 1][1]).total_seconds()
                shown = min(idle_s, worked * _GAP)
                if idle_s > 2 * shown:
                    self.gaps.append((at + shown / 2, idle_s))
                at += shown
            self._points.append((start, at))
            at += (end - start).total_seconds()
            self._points.append((end, at))
        self._total = at or 1.0
        self.gaps = [(100 * place / self._total, idle_s) for place, idle_s in self.gaps]

    def place(self, when: datetime) -> float:
        """Return where a time is, in percent; outside of all that is known at one of the ends."""
        before: tuple[datetime, float] | None = None
        for point in self._points:
            if when <= point[0]:
                if before is None:
                    return 0.0
                span = (point[0] - before[0]).total_seconds() or 1.0
                part = (when - before[0]).total_seconds() / span
                return 100 * (before[1] + part * (point[1] - before[1])) / self._total
            before = point
        return 100.0

    def bar(self, start: datetime | None, end: datetime | None) -> Bar | None:
        """Return the bar of an interval."""
        if start is None or end is None:
            return None
        x = min(self.place(start), 100 - _SLIVER)
        return Bar(round(x, 2), round(max(self.place(end) - x, _SLIVER), 2))


@dataclass(frozen=True, slots=True)
class CallRow:
    """A tool call in the timeline."""

    call: ToolCallView
    bar: Bar | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step in the timeline: what it said, and the calls that it made."""

    step: StepView
    bar: Bar | None
    said: str
    calls: list[CallRow]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of a page, the one under way, and where time is drawn short."""

    rows: list[StepRow]
    gaps: list[tuple[float, float]]
    under_way: Bar | None
    seconds: float


def timeline(
    steps: Sequence[StepView],
    calls: Sequence[ToolCallView],
    messages: Sequence[MessageView],
    under_way: Interval | None,
) -> Timeline:
    """Lay out steps with their calls; `under_way` is the time of the step that goes on now."""
    busy = [(s.started_at, s.finished_at) for s in steps if s.started_at is not None]
    busy += [(c.started_at, c.finished_at) for c in calls if c.started_at and c.finished_at]
    busy += [under_way] if under_way else []
    scale = Scale(busy)
    by_step: dict[int, list[CallRow]] = {}
    for call in calls:
        row = CallRow(call, scale.bar(call.started_at, call.finished_at))
        by_step.setdefault(call.step, []).append(row)
    said = words_by_step(messages)
    rows = [
        StepRow(
            step,
            scale.bar(step.started_at, step.finished_at),
            said.get(step.step, ""),
            by_step.get(step.step, []),
        )
        for step in steps
    ]
    first = min((start for start, _ in busy), default=None)
    last = max((end for _, end in busy), default=None)
    seconds = (last - first).total_seconds() if first and last else 0.0
    return Timeline(rows, scale.gaps, scale.bar(*under_way) if under_way else None, seconds)


def words_by_step(messages: Sequence[MessageView]) -> dict[int, str]:
    """Return what the model said in each step, without its tool calls."""
    out: dict[int, str] = {}
    for message in messages:
        if message.role == "assistant":
            text = "".join(_text(block) for block in message.content)
            out[message.step] = out.get(message.step, "") + text
    return out


def _text(block: dict[str, Any]) -> str:
    return str(block.get("text", "")) if block.get("type") == "text" else ""
