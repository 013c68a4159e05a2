"""Which messages a model is shown: all of a conversation, or what a compaction left of it.

Nothing is ever deleted. A compaction writes one message, the summary, behind those that there are,
and one entry of the run's memo says which of the older messages are still shown word for word. Both
are part of the checkpoint, so that a fork, a retry and whoever asks later see the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from harness_common.core.message import Json, Message, ToolResult

CONTEXT: Final = "context"
"""The key of `RunState.memo` that holds the compaction in force (`Compaction.to_json`)."""
COMPACTED: Final = "compacted"
"""The key of a summary's `Message.extra`: what it stands for. Providers do not look at it."""
SECTION: Final = "section"
"""The key of `Message.extra` that names the section which a message says (`context_prompt`)."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A message with where it comes from: `12` of this run, `<run>:12` of an earlier run of the
    session, empty for one that is nowhere stored (an orphan's answer).
    """

    message: Message
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The compaction in force: its summary and what is shown word for word beside it."""

    at: int
    """Number of the summary among the run's messages."""
    kept_from: int
    """First message of this run that is shown; those before are in the summary."""
    history_from: str | None = None
    """Origin of the first message of earlier runs that is shown; None shows none of them."""

    def to_json(self) -> Json:
        """Write it as the memo keeps it; `claim.sql` and `history.sql` read `from` and
        `history_from`.
        """
        return {"at": self.at, "from": self.kept_from, "history_from": self.history_from}

    @classmethod
    def of(cls, memo: Mapping[str, Json]) -> Compaction | None:
        """Read the compaction in force from a memo; None when there was none."""
        data = memo.get(CONTEXT)
        return None if data is None else cls(data["at"], data["from"], data.get("history_from"))


def needs_history(memo: Mapping[str, Json]) -> bool:
    """Tell whether messages of earlier runs are shown at all."""
    found = Compaction.of(memo)
    return found is None or found.history_from is not None


def first_needed(memo: Mapping[str, Json]) -> int:
    """Return the number of the first message of the run that has to be loaded."""
    found = Compaction.of(memo)
    return 1 if found is None else found.kept_from


def view(
    history: Sequence[Shown], own: Sequence[Message], first: int, compaction: Compaction | None
) -> tuple[Shown, ...]:
    """Return what the model is shown of `history` (earlier runs) and of `own`, the run's messages
    from number `first` on.
    """
    numbered = [Shown(m, str(n)) for n, m in enumerate(own, first)]
    if compaction is None:
        return (*history, *numbered)
    summary = own[compaction.at - first]
    kept = [
        *_from(history, compaction.history_from),
        # An earlier summary may stand among them: this one has taken its place.
        *(
            one
            for one in numbered[compaction.kept_from - first : compaction.at - first]
            if not is_summary(one.message)
        ),
    ]
    edits = edits_of(summary)
    if edits:
        kept = [edited(one, edits) for one in kept]
    later = numbered[compaction.at - first + 1 :]
    return (Shown(summary, str(compaction.at)), *kept, *later)


def is_summary(message: Message) -> bool:
    """Tell whether a message is the summary of a compaction."""
    return isinstance(message.extra, Mapping) and COMPACTED in message.extra


def section_of(message: Message) -> str | None:
    """Return the name of the section that a message says; None for an ordinary one."""
    found = message.extra.get(SECTION) if isinstance(message.extra, Mapping) else None
    return found if isinstance(found, str) else None


def about_summary(message: Message) -> Mapping[str, Json]:
    """Return what a summary says about itself: `covers`, `answers`, `results`, `edits`, …"""
    found: Mapping[str, Json] = message.extra[COMPACTED] if is_summary(message) else {}
    return found


def edits_of(summary: Message) -> Mapping[str, str]:
    """Return the results that are shown in other words: `<origin>.<block>` → text."""
    found: Mapping[str, str] = about_summary(summary).get("edits", {})
    return found


def edited(one: Shown, edits: Mapping[str, str]) -> Shown:
    """Put the shorter text of an edit in the place of a result. Only results are ever edited: what
    a model said stays whole, its thinking byte for byte.
    """
    if not one.origin or one.message.role == "assistant":
        return one
    content = tuple(
        replace(b, content=edits[key])
        if isinstance(b, ToolResult) and (key := f"{one.origin}.{i}") in edits
        else b
        for i, b in enumerate(one.message.content)
    )
    if content == one.message.content:
        return one
    return Shown(replace(one.message, content=content), one.origin)


def _from(history: Sequence[Shown], origin: str | None) -> Sequence[Shown]:
    if origin is None:
        return ()
    for i, one in enumerate(history):
        if one.origin == origin:
            return history[i:]
    return ()
