"""What may arrive at a run. Steps, routes and loops make these; `core.rules` says what follows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The owner's attempt failed. `jitter` in [0, 1) is drawn by the caller."""

    failure: Failure
    started_at: datetime
    jitter: float = 1.0


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


@dataclass(frozen=True, slots=True)
class Released:
    """The owner gives the step back unfinished (its process is told to stop)."""

    why: str


Input = Admit | StepDone | StepFailed | TimerDue | CancelRequested | OwnerLost | Released
