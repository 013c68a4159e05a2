"""The definition of an agent, as a tenant writes it and as every run pins it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from harness_common.contracts.foreign import KINDS as FOREIGN_KINDS
from harness_common.contracts.foreign import ForeignSpec
from harness_common.contracts.request_options import RequestOptions, options_of
from harness_common.core.budget import PRESETS
from harness_common.core.lease import is_quarantine
from harness_common.core.step import MODEL

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

    kind: Literal["agent", "langgraph", "openai_agents"] = "agent"
    """What a run of it is: a model with tools, or an object of another framework (`foreign`)."""
    foreign: ForeignSpec | None = None
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

    @model_validator(mode="after")
    def _has_its_object(self) -> AgentSpec:
        if (self.kind in FOREIGN_KINDS) != (self.foreign is not None):
            raise ValueError(
                "`foreign` names what a framework runs: an agent of kind langgraph or "
                "openai_agents has it, no other has"
            )
        return self

    @property
    def first_step(self) -> str:
        """Return the kind of a run's first step."""
        return self.kind if self.kind in FOREIGN_KINDS else MODEL

    @property
    def turns(self) -> int:
        """Return the cap on model answers."""
        return self.max_turns or PRESETS[self.preset]

    def with_overrides(self, overrides: Mapping[str, JsonValue]) -> AgentSpec:
        """Return the definition as a fork changed it; `recorded` (a dry run) is no part of it."""
        changed = {k: v for k, v in overrides.items() if k in {"model", "tools"}}
        spec = AgentSpec.model_validate(self.model_dump() | changed) if changed else self
        options = options_of(overrides)
        return spec if options is None else spec._as_asked(options)

    def _as_asked(self, options: RequestOptions) -> AgentSpec:
        """Return the definition with what one request wants of it."""
        asked: dict[str, Any] = {
            "system": "\n\n".join(t for t in (self.system, options.instructions) if t),
            "tools": (*self.tools, *(t.name for t in options.tools if t.name not in self.tools)),
        }
        if options.temperature is not None:
            asked["temperature"] = options.temperature
        if options.max_output_tokens is not None:
            asked["max_output_tokens"] = min(self.max_output_tokens, options.max_output_tokens)
        return self.model_copy(update=asked)

    def digest(self) -> str:
        """Return the SHA-256 of the definition, by which an unchanged one is recognised."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
