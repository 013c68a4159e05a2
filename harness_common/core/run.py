"""What a run is: its stored states, what decides its next move, and what a move writes.

`core.inputs` has what may arrive, `core.rules` the table of legal moves. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from harness_common.core.budget import Limits, Spent
from harness_common.core.events import Event
from harness_common.core.message import Json, Message
from harness_common.core.retry import RetryRule
from harness_common.core.step import (
    MODEL,
    NODE,
    CallOutcome,
)


class Status(StrEnum):
    """Stored states of a run. `cancelling` is shown, not stored: running and cancel requested."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_INPUT = "waiting_input"
    WAITING_TOOL = "waiting_tool"
    WAITING_CHILDREN = "waiting_children"
    DELAYED = "delayed"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


DEATHS: Final = "deaths"
PERMIT: Final = "permit"
DECIDED: Final = "decided"
OF_ONE_STEP: Final = frozenset({DEATHS, PERMIT, DECIDED})
"""The memo's keys for what concerns the coming step only (deaths at it, its slot for a model
call, approvals decided while it was under way): no part of a checkpoint, and gone when the step is
counted.
"""

TERMINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
WAITING: Final = frozenset(
    {
        Status.WAITING_APPROVAL,
        Status.WAITING_INPUT,
        Status.WAITING_TOOL,
        Status.WAITING_CHILDREN,
        Status.PAUSED,
    }
)


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything that decides what happens next to a run."""

    status: Status = Status.QUEUED
    version: int = 0
    """Moves by one per commit that changes status or step."""
    step: int = 0
    """Committed steps."""
    next_kind: str = MODEL
    turn: int = 0
    """Model answers so far."""
    failures: int = 0
    """Failed attempts at the current step that used up the retry rule."""
    limited: int = 0
    """How often in a row a limit put off the current step: patience grows with it."""
    deaths: int = 0
    """Processes that died while they held the current step."""
    claimed: bool = False
    not_before: datetime | None = None
    cancel_requested: bool = False
    pause_requested: bool = False
    started: bool = False
    turn_at: datetime | None = None
    """When the present turn was granted; kept while the run is `running`."""
    waiting: Json = None
    """What a waiting or delayed run waits for, as people are told: `{"for": …}`."""
    messages: int = 0
    """Messages written by this run."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    stop_reason: str | None = None
    error: Json = None
    output: str | None = None
    limits: Limits = field(default_factory=Limits)
    retry: RetryRule = field(default_factory=RetryRule)
    memo: Mapping[str, Json] = field(default_factory=dict)
    """Small facts that steps keep between them; part of every checkpoint."""

    @property
    def spent(self) -> Spent:
        """Return what its answers of models have cost so far."""
        return Spent(self.input_tokens, self.output_tokens, self.cost_usd)


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state and everything that must be written with it, in one commit."""

    state: RunState
    events: tuple[Event, ...] = ()
    messages: tuple[Message, ...] = ()
    outcomes: tuple[CallOutcome, ...] = ()
    """Ledger rows that end with this commit."""
    proposed: bool = False
    """A message of these proposes tool calls, which become ledger rows."""
    session_summary: str | None = None
    """What the session remembers of its runs from now on; None leaves it."""

    @property
    def ready(self) -> bool:
        """Tell whether somebody should ring: the run may be worked on and nobody owns it."""
        return self.state.status is Status.RUNNING and not self.state.claimed

    @property
    def proposal(self) -> Message:
        """Return the message that proposes tool calls."""
        return next(m for m in reversed(self.messages) if m.has_tool_uses())


def holds_slot(state: RunState) -> bool:
    """Tell whether a run takes one of its tenant's slots. Waiting, paused and delayed runs take
    none.
    """
    return state.status is Status.RUNNING


def wake_at(state: RunState, now: datetime, ring_after_s: float) -> datetime | None:
    """Return when somebody must look at a run again if nothing else happens; None when nothing is
    due.

    `ring_after_s` is how long to wait for a rung doorbell to be answered, or for a claimed step to
    end. A queued run needs no time but its deadline: admission finds it by its status.
    """
    deadline = state.limits.deadline
    match state.status:
        case Status.RUNNING:
            return now + timedelta(seconds=ring_after_s)
        case Status.WAITING_CHILDREN:
            # The end of a child wakes its parent; this is for the case that nobody noticed.
            return _earliest(now + timedelta(seconds=ring_after_s), deadline)
        case Status.DELAYED | Status.WAITING_TOOL | Status.WAITING_APPROVAL | Status.WAITING_INPUT:
            return _earliest(state.not_before, deadline)
        case Status.QUEUED | Status.PAUSED:
            return deadline
        case _:
            return None


def _earliest(*times: datetime | None) -> datetime | None:
    return min((t for t in times if t is not None), default=None)


def content(state: RunState) -> dict[str, Json]:
    """Return what a checkpoint keeps of the state: all that a fork or a replay from it needs."""
    return {
        "next_kind": state.next_kind,
        "turn": state.turn,
        "messages": state.messages,
        "input_tokens": state.input_tokens,
        "output_tokens": state.output_tokens,
        "cost_usd": state.cost_usd,
        "memo": {k: v for k, v in state.memo.items() if k not in OF_ONE_STEP},
    }


def delta(before: RunState, after: RunState) -> dict[str, Json]:
    """Return the parts of `content` that changed; applying it over the old content gives the new
    one. The memo also changes between steps (a message for the model, a place in a queue), so it is
    given whole unless it was empty all along; the kind of a run that begins with another kind than
    most is given too.
    """
    old, new = content(before), content(after)
    given = {"memo": new["memo"] or old["memo"], "next_kind": new["next_kind"] == NODE}
    return {k: v for k, v in new.items() if old[k] != v or given.get(k)}


def restore(data: Mapping[str, Json], step: int) -> RunState:
    """Build the state at a checkpoint from its folded content (see `core.replay.fold`)."""
    return RunState(
        step=step,
        next_kind=data["next_kind"],
        turn=data["turn"],
        messages=data["messages"],
        input_tokens=data["input_tokens"],
        output_tokens=data["output_tokens"],
        cost_usd=data["cost_usd"],
        memo=data["memo"],
    )
