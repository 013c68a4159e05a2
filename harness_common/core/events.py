"""The durable record of what happened, as values. Names are versioned and never edited; a changed
meaning is a new name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from harness_common.core.message import Json


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a run's event log. Its sequence number is given by the commit that writes it."""

    type: str
    payload: Mapping[str, Json]
    step: int | None = None
    at: datetime | None = None
    """When it happened; None for the time of the commit."""


RUN_CREATED: Final = "run.created"
RUN_STARTED: Final = "run.started"
RUN_RESUMED: Final = "run.resumed"
RUN_DELAYED: Final = "run.delayed"
RUN_WAITING: Final = "run.waiting"
RUN_CANCEL_REQUESTED: Final = "run.cancel_requested"
RUN_PAUSE_REQUESTED: Final = "run.pause_requested"
RUN_PAUSED: Final = "run.paused"
RUN_RESUME_REQUESTED: Final = "run.resume_requested"
RUN_YIELDED: Final = "run.yielded"
RUN_STEERED: Final = "run.steered"
RUN_INPUT_GIVEN: Final = "run.input_given"
RUN_EFFECTS_RESOLVED: Final = "run.effects_resolved"
RUN_RECOVERED: Final = "run.recovered"
RUN_COMPLETED: Final = "run.completed"
RUN_FAILED: Final = "run.failed"
RUN_CANCELLED: Final = "run.cancelled"
STEP_STARTED: Final = "step.started"
STEP_COMPLETED: Final = "step.completed"
STEP_FAILED: Final = "step.failed"
MODEL_ANSWERED: Final = "model.answered"
MODEL_DEGRADED: Final = "model.degraded"
"""Another model of the agent's chain answered; says which and why."""
MODEL_BREAKER_OPENED: Final = "model.breaker_opened"
MODEL_BREAKER_CLOSED: Final = "model.breaker_closed"
ANSWER_REPAIRED: Final = "answer.repaired"
"""What was changed to read an answer, entry by entry (`repair_log`)."""
ANSWER_REFUSED: Final = "answer.refused"
ANSWER_DOUBTED: Final = "answer.doubted"
CONTEXT_FULL: Final = "context.full"
CONTEXT_COMPACTED: Final = "context.compacted"
APPROVAL_REQUESTED: Final = "approval.requested"
APPROVAL_DECIDED: Final = "approval.decided"
APPROVAL_EXPIRED: Final = "approval.expired"
TOOL_STARTED: Final = "tool.started"
TOOL_PROGRESS: Final = "tool.progress"
TOOL_COMPLETED: Final = "tool.completed"
TOOL_FAILED: Final = "tool.failed"
TOOL_TIMEOUT: Final = "tool.timeout"
TOOL_UNKNOWN: Final = "tool.unknown"
TOOL_RETRIED: Final = "tool.retried"
TOOL_DEGRADED: Final = "tool.degraded"
TOOL_BREAKER_OPENED: Final = "tool.breaker_opened"
TOOL_BREAKER_CLOSED: Final = "tool.breaker_closed"
TOOL_REJECTED: Final = "tool.rejected"
"""Refused by policy, or by a person whom policy asked: nothing was started."""
TOOL_DENIED_REPEATEDLY: Final = "tool.denied_repeatedly"
GUARD_HINTED: Final = "guard.hinted"
"""A loop guard has told the model something (`guard` says which one)."""
GUARD_BLOCKED: Final = "guard.blocked"
"""A loop guard has refused a call before it was made."""
GUARD_STOPPED: Final = "guard.stopped"
GUARDRAIL_BLOCKED: Final = "guardrail.blocked"
GUARDRAIL_REWROTE: Final = "guardrail.rewrote"
GUARDRAIL_ASKED_AGAIN: Final = "guardrail.asked_again"
RUN_HANDED_OFF: Final = "run.handed_off"
RUN_CONDITION_MET: Final = "run.condition_met"

NODE_STARTED: Final = "node.started"
NODE_PROGRESS: Final = "node.progress"
NODE_RETRIED: Final = "node.retried"
NODE_COMPLETED: Final = "node.completed"
NODE_FAILED: Final = "node.failed"
NODE_SKIPPED: Final = "node.skipped"

LIVE_DELTA: Final = "answer.delta"
LIVE_STEP_STARTED: Final = "live.step_started"
"""Live names travel over Redis only: they have no sequence number and may be lost."""

TERMINAL_EVENTS: Final = frozenset({RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED})
