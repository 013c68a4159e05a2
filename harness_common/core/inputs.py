"""What may arrive at a run. Steps, routes and loops make these; `core.rules` says what follows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from harness_common.core.budget import FREE, Spent
from harness_common.core.step import (
    Failure,
    StepResult,
)


@dataclass(frozen=True, slots=True)
class Admit:
    """The scheduler (or the submission itself) grants a turn."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The owner finished a step."""

    result: StepResult
    started_at: datetime
    turn_over: bool = False
    """The run has had its turn and others wait: it goes back to the queue if it is not over."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The owner's attempt failed. `jitter` in [0, 1) is drawn by the caller."""

    failure: Failure
    started_at: datetime
    jitter: float = 1.0
    kept: Spent = FREE
    """What answers of models have cost that are on record: whoever does the step anew counts them,
    and a run that ends here does it now.
    """


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time the run waited for has come."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked to stop the run."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OwnerLost:
    """The process that held the run is dead."""

    worker: str
    why: str
    solo: bool = False
    """The process held nothing else: the death is this run's own doing."""


@dataclass(frozen=True, slots=True)
class Released:
    """The owner gives the step back unfinished (its process is told to stop)."""

    why: str
    spent: Spent = FREE
    """What answers of models have cost that are on record nowhere."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Somebody asked the run to rest at its next safe point."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """Somebody asked a paused run (or one that was asked to pause) to go on."""

    by: str


@dataclass(frozen=True, slots=True)
class InputGiven:
    """A person answered the question of a call (`index` within the step that waits)."""

    by: str
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Steered:
    """A message for a run under way: its next model step sees it."""

    by: str
    text: str


@dataclass(frozen=True, slots=True)
class ChildrenDone:
    """No child of the step that waits is still going."""


@dataclass(frozen=True, slots=True)
class EffectsResolved:
    """A person said what became of every unknown effect of the step that waits."""

    by: str


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """A person approved or denied a tool call (`index` within the step under way or waiting)."""

    by: str
    approval: str
    index: int
    tool: str
    verdict: Literal["approved", "denied"]
    reason: str = ""
    edited: bool = False


Input = (
    Admit
    | StepDone
    | StepFailed
    | TimerDue
    | CancelRequested
    | OwnerLost
    | Released
    | PauseRequested
    | ResumeRequested
    | InputGiven
    | Steered
    | ChildrenDone
    | EffectsResolved
    | ApprovalDecided
)
