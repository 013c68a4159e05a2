"""What a turn of another framework's object is given, and what its result means for the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.foreign import ForeignSpec
from harness_common.contracts.model import ChatRequest, ChatResult, Model
from harness_common.core.message import Json, Message, Text
from harness_common.core.step import (
    CallOutcome,
    ForeignStepped,
    StepResult,
    ToolsUnknown,
    ToolsWaiting,
)
from harness_common.core.tool_call import CallStatus
from harness_common.settings import FrameworkSettings
from harness_common.store.foreign import ForeignStore
from harness_common.store.rows import StoredRun
from harness_worker.frameworks.calls import Calls


class Models(Protocol):
    """Where the worker's models are found."""

    def get(self, name: str) -> Model:
        """Return a model by `provider/model`."""
        ...


Sample = Callable[[Model, ChatRequest], Awaitable[ChatResult]]
"""Asks a model within the throttle of its provider, as every step does."""
MEMO = "foreign"
"""Where a run remembers which state it has committed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn to run."""

    run: StoredRun
    spec: AgentSpec
    foreign: ForeignSpec
    conversation: tuple[Message, ...]
    store: ForeignStore
    calls: Calls
    settings: FrameworkSettings
    models: Models
    sample: Sample

    @property
    def thread(self) -> str:
        """Name the run's own state."""
        return self.run.id.hex

    async def head(self) -> str | None:
        """Return the state that the run has committed; a fork takes over its source's first."""
        memo = self.run.state.memo.get(MEMO) or {}
        head: str | None = memo.get("head")
        if head is not None and memo["thread"] != self.thread:
            await self.store.copy(memo["thread"], self.thread, head)
        return head


@dataclass(frozen=True, slots=True)
class Gave:
    """What a turn gave."""

    head: str
    output: str | None = None
    told: Mapping[str, Json] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


def result_of(turn: Turn, gave: Gave | None) -> StepResult:
    """Say what follows: an unknown effect or a wait comes before whatever the turn gave; None says
    that it gave nothing yet.
    """
    outcomes = turn.calls.outcomes
    unknown = tuple(i for i, o in outcomes.items() if o.status is CallStatus.UNKNOWN)
    if unknown:
        return ToolsUnknown(turn.calls.ended(), unknown, turn.calls.scope.held.paid)
    waits = tuple(o for o in outcomes.values() if o.wait is not None)
    if waits or gave is None:
        calls = _in_order((*turn.calls.ended(), *waits))
        return ToolsWaiting(calls, turn.calls.scope.held.paid)
    said = () if gave.output is None else (Message("assistant", (Text(gave.output),)),)
    return ForeignStepped(
        kind=turn.spec.kind,
        memo={MEMO: {"thread": turn.thread, "head": gave.head}},
        outcomes=turn.calls.ended(),
        messages=said,
        output=gave.output,
        told=gave.told,
        input_tokens=gave.input_tokens,
        output_tokens=gave.output_tokens,
        cost_usd=gave.cost_usd,
    )


def _in_order(outcomes: tuple[CallOutcome, ...]) -> tuple[CallOutcome, ...]:
    return tuple(sorted(outcomes, key=lambda o: o.index))
