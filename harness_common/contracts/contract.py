"""What an agent's answers have to look like, and how far they may be repaired."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

HEDGES = (
    "可能", "大概", "也许", "或许", "试试", "maybe", "perhaps", "might work", "not sure", "i guess",
    "let's try", "unsure",
)  # fmt: skip
"""Words by which a model says that it does not know."""

Word = Annotated[str, Field(min_length=1, max_length=64)]


class ContractSpec(BaseModel):
    """The form of an agent's answers, besides its `output_schema`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actions: Literal["auto", "always"] = "auto"
    """`always`: tools are asked for by the action schema; `auto`: only of a model without tool
    calls.
    """
    reasks: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a run's model is asked again, in a row, when an answer has not the form."""
    repair: bool = True
    """Whether answers that are nearly right are repaired; without, they are asked for again."""
    confirm: Literal["never", "writes", "all"] = "writes"
    """Which calls of an unsure answer wait for a person."""
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.3
    """An action with less is unsure."""
    default_confidence: Annotated[float, Field(ge=0, le=1)] = 0.7
    """What an action has that says none."""
    hedges: Annotated[tuple[Word, ...], Field(max_length=100)] = HEDGES
    """Words that make an answer unsure."""
    watch_text: bool = False
    """Whether the words beside native tool calls are looked at for hedges too."""
    synonyms: Annotated[dict[Word, Word], Field(max_length=200)] = Field(default_factory=dict)
    """Other names of the agent's tools, as models call them: `{"google": "web_search"}`."""
