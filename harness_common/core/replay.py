"""Rebuilding the state of a run from its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness_common.core.message import Json
from harness_common.core.run import RunState, content, restore


def fold(start: Mapping[str, Json], deltas: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """Apply checkpoint deltas in order over a snapshot's content; each replaces whole keys."""
    out = dict(start)
    for one in deltas:
        out.update(one)
    return out


def initial_content() -> dict[str, Json]:
    """Return the content before the first step of a run that started from nothing."""
    return content(RunState())


def state_at(
    start: Mapping[str, Json], deltas: Iterable[Mapping[str, Json]], step: int
) -> RunState:
    """Return the state after `step` committed steps."""
    return restore(fold(start, deltas), step)
