"""How closely a run is watched for going round in circles: a part of an agent's definition."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness_common.core.loop_guard import LoopRules


class LoopGuards(BaseModel):
    """Each guard can be turned off; the numbers are rounds of tool calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dead_loop: bool = True
    """The same or alike calls with the same result, round after round."""
    ping_pong: bool = True
    """Two or three different rounds in turn."""
    no_progress: bool = True
    """Rounds without a success that is new."""
    give_up: bool = True
    """A model that gives up at the first error of a tool is asked once to go on."""
    block_repeats: bool = True
    """A call that has failed twice in the same way is not made a third time."""
    references: bool = True
    """A call whose arguments stand for a result that is not there yet is not made."""
    hint_after: Annotated[int, Field(ge=2, le=50)] = 3
    """Rounds of a dead loop after which the model is told."""
    stop_after: Annotated[int, Field(ge=3, le=100)] = 5
    """Rounds of a dead loop that end the run; more where there may be reasons to ask again."""
    likeness: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of common words from which arguments count as alike."""
    stale_hint_after: Annotated[int, Field(ge=2, le=200)] = 6
    stale_stop_after: Annotated[int, Field(ge=3, le=400)] = 12
    warn_at: Annotated[float, Field(gt=0, lt=1)] | None = 0.8
    """The share of turns, tokens or money at which the model is warned; None does not warn."""
    max_handoffs: Annotated[int, Field(ge=0, le=1000)] = 8
    """How often a run may be handed from agent to agent."""

    @model_validator(mode="after")
    def _in_order(self) -> LoopGuards:
        for hint, stop in (
            ("hint_after", "stop_after"),
            ("stale_hint_after", "stale_stop_after"),
        ):
            if getattr(self, hint) >= getattr(self, stop):
                raise ValueError(
                    f"{hint} ({getattr(self, hint)}) must be below {stop} ({getattr(self, stop)}): "
                    "the model is told before the run ends"
                )
        return self

    def rules(self) -> LoopRules:
        """Return what the pure guards go by."""
        return LoopRules(
            dead_loop=self.dead_loop,
            ping_pong=self.ping_pong,
            no_progress=self.no_progress,
            block_repeats=self.block_repeats,
            hint_after=self.hint_after,
            stop_after=self.stop_after,
            likeness=self.likeness,
            stale_hint_after=self.stale_hint_after,
            stale_stop_after=self.stale_stop_after,
        )
