"""Agents on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from harness_api.schemas.base import Input, Output, Time, WholeNumbers
from harness_common.contracts.agent import (
    AgentSpec,
    HandoffTarget,
    Name,
    RetrySpec,
    SkillRef,
    ToolName,
)
from harness_common.contracts.contract import HEDGES, ContractSpec, Word
from harness_common.contracts.graph import GraphSpec
from harness_common.contracts.loop_guards import LoopGuards
from harness_common.contracts.memory import KINDS, Kind, MemorySpec
from harness_common.contracts.stop_when import StopWhen


class RetrySpecInput(WholeNumbers, RetrySpec):
    """How patiently a failing step is tried again."""


class ContractSpecInput(WholeNumbers, ContractSpec):
    """The form of an agent's answers, and how far they may be repaired."""

    hedges: Annotated[tuple[Word, ...], Field(strict=False, max_length=100)] = HEDGES


class LoopGuardsInput(WholeNumbers, LoopGuards):
    """How closely a run is watched for going round in circles."""


class StopWhenInput(WholeNumbers, StopWhen):
    """A condition that ends a run."""

    tool_calls: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    tokens: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = None


class MemorySpecInput(WholeNumbers, MemorySpec):
    """What an agent remembers."""

    kinds: Annotated[tuple[Kind, ...], Field(strict=False)] = KINDS


class AgentSpecInput(WholeNumbers, AgentSpec):
    """The definition of an agent. The same fields as inside, with strict types."""

    tools: Annotated[tuple[ToolName, ...], Field(strict=False, max_length=500)] = ()
    skills: Annotated[tuple[SkillRef, ...], Field(strict=False, max_length=20)] = ()
    memory: MemorySpecInput | None = None
    max_tokens_total: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    retry: RetrySpecInput = RetrySpecInput()
    contract: ContractSpecInput = ContractSpecInput()
    loop_guards: LoopGuardsInput = LoopGuardsInput()
    stop_when: Annotated[tuple[StopWhenInput, ...], Field(strict=False, max_length=20)] = ()
    handoffs: Annotated[tuple[HandoffTarget, ...], Field(strict=False, max_length=50)] = ()
    graph: Annotated[GraphSpec | None, Field(strict=False)] = None

    def plain(self) -> AgentSpec:
        """Return the definition as everybody else knows it."""
        return AgentSpec.model_validate(self.model_dump())


class AgentPut(Input):
    """An agent by name; a changed definition becomes its next version."""

    name: Name
    spec: AgentSpecInput


class AgentView(Output):
    """One version of an agent."""

    id: str
    name: str
    version: int
    spec: dict[str, Any]
    digest: str
    created_at: Time
    created_by: str


class AgentChange(Output):
    """A field that differs between two versions."""

    path: str
    """Its place in the definition, for example `retry.max_attempts`."""
    change: Literal["added", "removed", "changed"]
    before: JsonValue
    after: JsonValue
    lines: list[str] | None
    """Of a text of several lines: the changed ones (`-` and `+`) with some around them."""


class AgentDiff(Output):
    """What changed from one version of an agent to another."""

    name: str
    from_version: int
    to_version: int
    changes: list[AgentChange]


class AgentPutView(AgentView):
    """What was put, and what to look at before a run is started."""

    warnings: list[str]
