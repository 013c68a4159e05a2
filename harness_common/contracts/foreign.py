"""What an agent says that another framework runs: which of the worker's registered objects, and how
the run's input and output are mapped.

The object itself (a LangGraph graph, an OpenAI-Agents agent) is registered on the worker by its
operator (`frameworks.graphs`, `frameworks.agents`); a tenant names it and can load no code.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

LANGGRAPH: Final = "langgraph"
OPENAI_AGENTS: Final = "openai_agents"
KINDS: Final = frozenset({LANGGRAPH, OPENAI_AGENTS})


class ForeignSpec(BaseModel):
    """An object of another framework."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    """Under which the operator registered it."""
    input: Literal["messages", "json"] = "messages"
    """`messages`: the conversation as `{"messages": [...]}`. `json`: the input is a JSON object,
    the graph's first state.
    """
