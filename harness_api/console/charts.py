"""Small charts as SVG, made here: places and sizes as attributes, since the policy of the pages
forbids inline styles. Each goes with a sentence that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from harness_common.store.connection import Row

ENDS: Final = ("succeeded", "failed", "cancelled")
HEIGHT: Final = 64.0


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a stacked bar, in the units of the chart's view box."""

    x: float
    y: float
    width: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Stack:
    """One slice of time: how many ended in which way."""

    starts: datetime
    counts: Mapping[str, int]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked bars over time."""

    stacks: tuple[Stack, ...]
    most: int
    """The highest bar's count."""
    said: str


def throughput(rows: Sequence[Row], since: datetime, window: timedelta, slices: int) -> Chart:
    """Draw how many runs ended in each slice of a window; the view box is 12 wide a slice."""
    counts = [dict.fromkeys(ENDS, 0) for _ in range(slices)]
    for row in rows:
        if row["status"] in ENDS and row["slice"] >= 0:
            counts[min(row["slice"], slices - 1)][row["status"]] += row["runs"]
    most = max(sum(each.values()) for each in counts)
    stacks = []
    for index, each in enumerate(counts):
        blocks, y = [], HEIGHT
        for tone in ENDS:
            height = HEIGHT * each[tone] / most if most else 0.0
            if height:
                y -= height
                blocks.append(Block(index * 12 + 1.5, round(y, 2), 9, round(height, 2), tone))
        stacks.append(Stack(since + index * window / slices, each, tuple(blocks)))
    totals = {tone: sum(each[tone] for each in counts) for tone in ENDS}
    said = ", ".join(f"{count} {tone}" for tone, count in totals.items())
    minutes = int(window.total_seconds() // 60)
    return Chart(tuple(stacks), most, f"Runs that ended in the last {minutes} minutes: {said}.")
