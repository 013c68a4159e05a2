"""How far graph runs are, kept in memory between their steps.

A run's messages say how far it is, and following them all again costs more with each step. Who made
the last step knows already: what is kept is good for exactly the messages that it led to, and
anybody else follows them from the beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from harness_common.core.graph import Graph
from harness_common.core.graph_log import replay
from harness_common.core.graph_progress import Progress
from harness_common.core.message import Message

_KEPT: Final = 128
"""Runs of a process whose progress is kept."""


class KeptProgress:
    """The progress of the runs that a process worked on last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[UUID, UUID], tuple[int, tuple[Message, ...], Progress]] = (
            OrderedDict()
        )

    def take(
        self,
        key: tuple[UUID, UUID],
        graph: Graph,
        messages: Sequence[Message],
        said: Sequence[str],
    ) -> Progress:
        """Return the progress that the messages lead to; it is the caller's alone.

        `key` names the worker and the run. The last messages tell whether what is kept is of this
        record: a commit that failed, or another owner's, has led elsewhere.
        """
        count, last, progress = self._kept.pop(key, (0, (), None))
        if progress is None or count != len(messages) or last != tuple(messages[-len(last) :]):
            return replay(graph, messages, said)
        progress.said = list(said)
        progress.events.clear()
        return progress

    def keep(
        self,
        key: tuple[UUID, UUID],
        before: int,
        added: tuple[Message, ...],
        progress: Progress,
    ) -> None:
        """Keep a progress for the step after the one that adds these messages to `before`."""
        self._kept[key] = (before + len(added), added, progress)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
