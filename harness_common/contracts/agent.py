"""The definition of an agent, as a tenant writes it and as every run pins it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from harness_common.contracts.context_rules import ContextRules
from harness_common.contracts.contract import ContractSpec
from harness_common.contracts.foreign import KINDS as FOREIGN_KINDS
from harness_common.contracts.foreign import ForeignSpec
from harness_common.contracts.graph import GraphSpec
from harness_common.contracts.graph_compile import tool_names
from harness_common.contracts.guardrails import Guardrails
from harness_common.contracts.loop_guards import LoopGuards
from harness_common.contracts.memory import MemorySpec
from harness_common.contracts.names import ModelName, Name, SkillRef, ToolName
from harness_common.contracts.request_options import RequestOptions, options_of
from harness_common.contracts.stop_when import StopWhen
from harness_common.contracts.tool_choice import ToolChoice
from harness_common.core.budget import PRESETS
from harness_common.core.handoff import TRANSFER
from harness_common.core.lease import is_quarantine
from harness_common.core.step import MODEL, NODE

_OF_A_LOOP: Final = (
    "tool_choice", "stop_when", "guardrails", "handoffs", "memory", "skills", "loop_guards",
)  # fmt: skip
"""What only an agent that asks its model in a loop can follow."""
_OF_OUR_ANSWERS: Final = ("tool_choice", "stop_when", "guardrails", "handoffs", "output_schema")
"""What is held to when a model of ours answers in our loop or graph, and in no framework's."""
_GRAPH_TURNS: Final = 10_000
"""Model answers of a graph run: its own caps say how much it does."""

__all__ = ["AgentSpec", "Name", "QueueName", "RetrySpec", "SkillRef", "ToolName"]

HandoffTarget = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,51}$")]
"""An agent whose name fits into that of a tool: no dot, at most 52 characters."""


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

    kind: Literal["agent", "graph", "langgraph", "openai_agents"] = "agent"
    """An agent asks its model what to do next, a graph says so itself; the others are objects of
    another framework (`foreign`).
    """
    graph: GraphSpec | None = None
    foreign: ForeignSpec | None = None
    description: str = ""
    model: str = "scripted/demo"
    """`provider/model`, for example `openai/gpt-5-mini` or `scripted/demo`."""
    fallback_models: Annotated[tuple[ModelName, ...], Field(max_length=8)] = ()
    """Asked in this order when `model` cannot serve (`core.fallback`), each as `provider/model`."""
    system: str = ""
    tools: tuple[ToolName, ...] = ()
    tool_choice: ToolChoice | None = None
    """Forces a tool, or none; None leaves it to the model."""
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
    loop_guards: LoopGuards = LoopGuards()
    stop_when: tuple[StopWhen, ...] = ()
    """Conditions that end a run besides the model's final answer."""
    guardrails: Guardrails = Guardrails()
    handoffs: tuple[HandoffTarget, ...] = ()
    """Agents that this one may hand a run to: each is a tool `transfer_to_NAME`."""
    context: ContextRules = ContextRules()
    queue: QueueName = "steps.default"
    output_schema: dict[str, JsonValue] | None = None
    """JSON Schema of the run's output, an object; None leaves it to be text."""
    contract: ContractSpec = ContractSpec()

    @model_validator(mode="after")
    def _has_the_chosen_tool(self) -> AgentSpec:
        unknown = self.tool_choice.unknown(self.tools) if self.tool_choice else None
        if unknown is not None:
            raise ValueError(
                f"tool_choice names {unknown}, which is not one of the agent's tools; add it to "
                "tools, or write auto, required or none"
            )
        return self

    skills: Annotated[tuple[SkillRef, ...], Field(max_length=20)] = ()
    """How its runs may do some kinds of work; each run pins the versions it starts with."""
    memory: MemorySpec | None = None
    """What of earlier runs its runs are told; None: nothing, unless they search for it."""

    @model_validator(mode="after")
    def _has_its_object(self) -> AgentSpec:
        if (self.kind in FOREIGN_KINDS) != (self.foreign is not None):
            raise ValueError(
                "`foreign` names what a framework runs: an agent of kind langgraph or "
                "openai_agents has it, no other has"
            )
        return self

    def not_held_to(self) -> tuple[str, ...]:
        """Name the fields that nothing of ours can hold an agent of this kind to."""
        names = _OF_OUR_ANSWERS if self.foreign is not None else ()
        return tuple(name for name in names if self._says(name))

    @property
    def models(self) -> tuple[str, ...]:
        """Return the chain of models, in the order in which they are asked."""
        return (self.model, *self.fallback_models)

    @property
    def turns(self) -> int:
        """Return the cap on model answers."""
        return self.max_turns or (_GRAPH_TURNS if self.graph else PRESETS[self.preset])

    @property
    def first_kind(self) -> str:
        """Return the kind of a run's first step."""
        if self.kind in FOREIGN_KINDS:
            return self.kind
        return NODE if self.graph else MODEL

    @property
    def may_use(self) -> tuple[str, ...]:
        """Name the tools that a run may use: those of a graph's nodes, unless it names them."""
        return tool_names(self.graph) if self.graph and not self.tools else self.tools

    @model_validator(mode="after")
    def _has_its_graph(self) -> Self:
        if (self.kind == "graph") != (self.graph is not None):
            raise ValueError("`kind: graph` and a `graph` (with `nodes`) go together")
        if self.graph is not None and (idle := [n for n in _OF_A_LOOP if self._says(n)]):
            raise ValueError(
                f"a graph has no use for {', '.join(idle)}: say it of the agent of an `agent` node"
            )
        return self

    def _says(self, name: str) -> bool:
        """Tell whether a field is not as it is by itself."""
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) != default)

    def with_handoffs(self) -> AgentSpec:
        """Return the definition with its hand-offs among its tools."""
        names = [f"{TRANSFER}{agent}" for agent in self.handoffs]
        new = [name for name in dict.fromkeys(names) if name not in self.tools]
        return self.model_copy(update={"tools": (*self.tools, *new)}) if new else self

    def with_overrides(self, overrides: Mapping[str, JsonValue]) -> AgentSpec:
        """Return the definition as a fork or the run's start changed it; `recorded` (a dry run) is
        no part of it.
        """
        changed = {k: v for k, v in overrides.items() if k in {"model", "tools", "output_schema"}}
        spec = self._changed(changed) if changed else self
        options = options_of(overrides)
        return spec if options is None else spec._as_asked(options)

    def _changed(self, changed: dict[str, JsonValue]) -> AgentSpec:
        fields = self.model_dump() | changed
        if self.tool_choice is not None and self.tool_choice.unknown(fields["tools"]):
            fields["tool_choice"] = None  # the fork has no such tool any more
        return AgentSpec.model_validate(fields)

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
