"""What else a prompt holds besides system text and messages: skills, memories, the state of things.

Each source is a function of the step's context; a new one is its file and a line here. What is
pinned for a run (a skill) is not volatile and stands in the system text; what may change from step
to step (memories that were found) is, and is said at the end of the conversation when it changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core.context_prompt import Section
from harness_worker.steps.context import StepContext

Source = Callable[[StepContext], Awaitable[Sequence[Section]]]

SKILLS: Final[tuple[Source, ...]] = ()
MEMORIES: Final[tuple[Source, ...]] = ()
STATE: Final[tuple[Source, ...]] = ()


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of one step, by the part of the prompt that they belong to."""

    skill: tuple[Section, ...] = ()
    memories: tuple[Section, ...] = ()
    state: tuple[Section, ...] = ()


async def sections_of(ctx: StepContext) -> Sections:
    """Ask every source."""
    return Sections(
        tuple([s for source in SKILLS for s in await source(ctx)]),
        tuple([s for source in MEMORIES for s in await source(ctx)]),
        tuple([s for source in STATE for s in await source(ctx)]),
    )
