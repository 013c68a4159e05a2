"""Policies of tool calls on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from harness_api.schemas.api_keys import Role
from harness_api.schemas.base import Input, Output, Time
from harness_common.contracts.agent import Name, ToolName
from harness_common.core.message import Json

Source = Annotated[
    str, Field(max_length=256 * 1024, description="The rules as YAML (or JSON); see docs/policy.md")
]


class PolicyPut(Input):
    """Rules of the tenant, or of one agent; changed rules become the next version."""

    source: Source
    agent: Name | None = None


class PolicyView(Output):
    """One version of a policy. Version 0: nothing was ever set, only what is built in applies."""

    agent: str | None
    version: int
    source: str
    rules: dict[str, Any]
    digest: str
    created_at: Time | None
    created_by: str


class ToolFacts(Input):
    """What a tool declares: the server of the API knows no tools, so say it."""

    name: ToolName
    effect: Literal["read", "idempotent", "write"] = "read"
    risk: Literal["low", "medium", "high"] = "low"
    outbound: bool = False
    reads_private: bool = False
    untrusted_output: bool = False
    permission_tags: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=50)] = (
        Field(default_factory=list)
    )
    timeout_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    cost_estimate_usd: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class PolicyTest(Input):
    """A made-up call, and optionally rules in the place of the newest ones."""

    tool: ToolFacts
    arguments: dict[str, Any] = Field(default_factory=dict)
    agent: Name | None = None
    role: Role | None = "operator"
    tainted: bool = False
    """The run has read untrusted content."""
    read_private: bool = False
    used_outbound: bool = False
    budget_left_usd: float | None = None
    source: Source | None = None
    """The tenant's rules to try; the newest when left out."""
    agent_source: Source | None = None

    @model_validator(mode="after")
    def _agent_is_named(self) -> PolicyTest:
        if self.agent_source is not None and self.agent is None:
            raise ValueError("agent_source needs the agent's name in `agent`")
        return self


class RuleLook(Output):
    """One rule that was looked at: whether it decided, and why or why not."""

    layer: str
    rule: str
    matched: bool
    why: str


class DecisionView(Output):
    """A verdict and its whole derivation, in the order in which the rules were looked at."""

    verdict: Literal["allow", "ask", "deny"]
    rule: str | None
    reasons: list[str]
    version: str
    risk: str
    approvers: list[str]
    four_eyes: bool
    expires_s: float | None
    facts: dict[str, Json]
    facts_digest: str
    looks: list[RuleLook]


class CallPolicyView(DecisionView):
    """The decision that was made about a call, derived again from what was recorded then."""

    run_id: str
    call: str
    tool: str
    arguments: Json
    status: str
    error_type: str | None
    same: bool
    """Whether the derivation comes to what was decided; false after an update that changed what is
    built in, or when a person changed the arguments.
    """
