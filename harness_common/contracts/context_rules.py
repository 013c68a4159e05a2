"""How much of a conversation an agent's model is shown, and what becomes of the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class ContextRules(BaseModel):
    """When a conversation is compacted, and how. The whole of it stays stored either way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window_share: Annotated[float, Field(ge=0.1, le=0.95)] = 0.8
    """The share of the model's window that a prompt may take before it is compacted."""
    window_tokens: Annotated[int, Field(ge=256, le=100_000_000)] | None = None
    """The model's window, where it is known better than by the model's name."""
    max_prompt_tokens: Annotated[int, Field(ge=256, le=100_000_000)] | None = None
    """A budget of its own for a prompt, below the window: None has none."""
    rounds_kept: Annotated[int, Field(ge=1, le=1_000)] = 10
    """How many of the last rounds stay word for word."""
    strategy: Literal["summarise", "extract", "trim"] = "summarise"
    """What older rounds become: a summary by a model, the fixed form by code, or nothing."""
    summary_tokens: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    """The longest that a summary may be; one that comes out longer is reduced to the fixed form."""
    summary_model: str | None = None
    """A cheaper model for summaries (`provider/model`); None asks the agent's own."""
    result_tokens: Annotated[int, Field(ge=100, le=1_000_000)] = 4_000
    """The longest a tool's result is shown; the whole of a longer one is kept as an artifact."""

    def window(self, of_model: int) -> int:
        """Return the window that counts, given what is known of the model."""
        return self.window_tokens or of_model

    def limit_tokens(self, of_model: int, max_output_tokens: int) -> int:
        """Return the most that a prompt may take: its share of the window, with room for the
        answer, and no more than its own budget.
        """
        window = self.window(of_model)
        limit = min(int(window * self.window_share), window - max_output_tokens)
        limit = max(limit, window // 4)
        return limit if self.max_prompt_tokens is None else min(limit, self.max_prompt_tokens)
