"""The definition of an agent, as a tenant writes it and as every run pins it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from harness_common.contracts.graph import GraphSpec
from harness_common.contracts.graph_compile import tool_names
from harness_common.core.budget import PRESETS
from harness_common.core.lease import is_quarantine
from harness_common.core.step import MODEL, NODE

_GRAPH_TURNS: Final = 10_000
"""Model answers of a graph run: its own caps say how much it does."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
ToolName = Annotated[str, Field(pattern=r"^([a-zA-Z0-9_-]{1,64}|[a-z0-9-]{1,32}__\*)$")]
"""A tool, or `server__*`: all tools of an MCP server that the tenant has accepted."""


def _no_quarantine(queue: str) -> str:
    if is_quarantine(queue):
        raise ValueError(
            "a queue that ends with .quarantine is kept for runs whose worker processes died; "
            "choose another name"
        )
    return queue


QueueName = Annotated[
    str, Field(pattern=r"^steps\.[a-z0-9_.-]{1,48}$"), AfterValidator(_no_quarantine)
]


class RetrySpec(BaseModel):
    """How patiently a failing step is tried again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 5
    base_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    factor: Annotated[float, Field(ge=1, le=10)] = 2.0
    max_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0


class AgentSpec(BaseModel):
    """One version of an agent. A run pins the version it was created with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["agent", "graph"] = "agent"
    """An agent asks its model what to do next; a graph says so itself."""
    graph: GraphSpec | None = None
    description: str = ""
    model: str = "scripted/demo"
    """`provider/model`, for example `openai/gpt-5-mini` or `scripted/demo`."""
    system: str = ""
    tools: tuple[ToolName, ...] = ()
    preset: Literal["retrieval", "data", "orchestration"] = "data"
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Model answers a run may take; None uses the preset (8, 20 or 30)."""
    max_tokens_total: Annotated[int, Field(ge=1)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Wall clock of a whole run."""
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    first_token_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    model_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    model_options: dict[str, JsonValue] = Field(default_factory=dict)
    retry: RetrySpec = RetrySpec()
    queue: QueueName = "steps.default"

    @property
    def turns(self) -> int:
        """Return the cap on model answers."""
        return self.max_turns or (_GRAPH_TURNS if self.graph else PRESETS[self.preset])

    @property
    def first_kind(self) -> str:
        """Return the kind of a run's first step."""
        return NODE if self.graph else MODEL

    @property
    def may_use(self) -> tuple[str, ...]:
        """Name the tools that a run may use: those of a graph's nodes, unless it names them."""
        return tool_names(self.graph) if self.graph and not self.tools else self.tools

    @model_validator(mode="after")
    def _has_its_graph(self) -> Self:
        if (self.kind == "graph") != (self.graph is not None):
            raise ValueError("`kind: graph` and a `graph` (with `nodes`) go together")
        return self

    def with_overrides(self, overrides: Mapping[str, JsonValue]) -> AgentSpec:
        """Return the definition as a fork changed it; `recorded` (a dry run) is no part of it."""
        changed = {k: v for k, v in overrides.items() if k in {"model", "tools"}}
        return AgentSpec.model_validate(self.model_dump() | changed) if changed else self

    def digest(self) -> str:
        """Return the SHA-256 of the definition, by which an unchanged one is recognised."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
