"""The frozen context of one step: everything it may know, read once at its start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness_common.contracts.agent import AgentSpec
from harness_common.core.context_view import Shown
from harness_common.core.message import Message
from harness_common.store.rows import StoredRun
from harness_worker.runtime import Held, Runtime


@dataclass(frozen=True, slots=True)
class StepContext:
    """One snapshot for prompt, tool definitions, parsing and policy alike; the next step reads
    anew.
    """

    run: StoredRun
    spec: AgentSpec
    history: tuple[Message, ...]
    """Messages of the session's earlier runs, as far as they are shown."""
    messages: tuple[Message, ...]
    """Messages of this run from number `first` on: those before are in the summary of a
    compaction (`steps.prompt.shown_of` has what the model is shown).
    """
    calls: tuple[dict[str, Any], ...]
    """Ledger rows of this step (tools steps only)."""
    started_at: datetime
    """Postgres time at the claim."""
    runtime: Runtime
    held: Held
    first: int = 1
    """Number of the first of `messages`."""
    past: tuple[Shown, ...] = ()
    """`history` with where each message comes from."""

    @property
    def number(self) -> int:
        """Return the number of this step, 1 for the first."""
        return self.run.state.step + 1

    @property
    def is_last_answer(self) -> bool:
        """Tell whether the run may take no answer after the one of this step: to ask for another
        would only take away the one it has.
        """
        state = self.run.state
        return state.turn + 1 >= state.limits.max_turns
