"""Tools and the hosts that requests may go to, on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time, WholeNumbers
from harness_common.contracts.agent import ToolName
from harness_common.contracts.http_tool import HttpRequest, ToolDefinition

Effect = Literal["read", "idempotent", "write"]


class HttpRequestInput(WholeNumbers, HttpRequest):
    """The request that a call becomes. Texts may hold `{argument}` and `secret://name`."""


class ToolDefinitionInput(WholeNumbers, ToolDefinition):
    """The definition of a tool. The same fields as inside, with strict types."""

    http: HttpRequestInput

    def plain(self) -> ToolDefinition:
        """Return the definition as everybody else knows it."""
        return ToolDefinition.model_validate(self.model_dump())


class ToolView(Output):
    """A tool: a tenant's own, or one that workers have (then without a definition)."""

    name: str
    version: str
    source: Literal["tenant", "worker"]
    kind: str
    status: Literal["enabled", "disabled", "removed"]
    description: str
    input_schema: dict[str, Any]
    effect: Effect
    risk: str
    permission_tags: list[str]
    sandbox: str
    timeout_s: float
    cost_estimate_usd: float
    outbound: bool
    reads_private: bool
    untrusted_output: bool
    repeatable: bool
    max_attempts: int | None
    cache_s: float | None
    fallback: str | None
    queues: list[str]
    """Where it is to be had: the queues of the workers that have it; empty: at every worker."""
    digest: str
    created_at: Time
    created_by: str | None
    definition: dict[str, Any] | None


class ToolList(Output):
    """All tools, by name."""

    data: list[ToolView]


class ToolImport(Input):
    """An OpenAPI document (3.0 or 3.1), and what to make of it."""

    document: dict[str, Any]
    only: Annotated[list[str], Field(max_length=1_000)] = Field(default_factory=list)
    """Operations, as `GET:/pets` or `operationId`; none means all."""
    server: Annotated[str, Field(max_length=1_000)] | None = None
    """Instead of the document's own."""
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{0,32}$")] = ""
    headers: Annotated[dict[str, str], Field(max_length=50)] = Field(default_factory=dict)
    """Sent with every request: `{"Authorization": "Bearer secret://name"}`."""
    query: Annotated[dict[str, str], Field(max_length=50)] = Field(default_factory=dict)
    effects: Annotated[dict[str, Effect], Field(max_length=1_000)] = Field(default_factory=dict)
    """By operation, as in `only`, where the method says it wrongly."""
    dry_run: bool = False


class ImportedTool(Output):
    """What became of one operation."""

    operation: str
    name: str
    version: str | None
    """Null in a dry run."""
    changed: bool
    effect: Effect
    warnings: list[str]
    definition: dict[str, Any]


class SkippedOperation(Output):
    """An operation of which no tool was made."""

    operation: str
    reason: str


class ToolImported(Output):
    """The outcome of an import."""

    tools: list[ImportedTool]
    skipped: list[SkippedOperation]
    dry_run: bool


class EgressView(Output):
    """Where the tenant's requests may go: everywhere public when `allow` is empty."""

    allow: list[str]
    deny: list[str]
    changed_at: Time | None
    changed_by: str | None


class EgressPut(Input):
    """Hosts, `*.name`, addresses and networks; `deny` goes first."""

    allow: Annotated[list[Annotated[str, Field(max_length=260)]], Field(max_length=500)] = Field(
        default_factory=list
    )
    deny: Annotated[list[Annotated[str, Field(max_length=260)]], Field(max_length=500)] = Field(
        default_factory=list
    )


__all__ = [
    "EgressPut",
    "EgressView",
    "ImportedTool",
    "SkippedOperation",
    "ToolDefinitionInput",
    "ToolImport",
    "ToolImported",
    "ToolList",
    "ToolName",
    "ToolView",
]
