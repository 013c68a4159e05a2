"""Tools and where they come from, as the client returns them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from harness_api.client.types.view import View


class Tool(View):
    """A tool: one version of a tenant's own, or one that workers have."""

    name: str
    version: str
    source: str
    kind: str
    status: str
    description: str
    input_schema: dict[str, Any]
    effect: str
    risk: str = "low"
    permission_tags: tuple[str, ...] = ()
    sandbox: str = "none"
    timeout_s: float
    cost_estimate_usd: float = 0.0
    outbound: bool = False
    reads_private: bool = False
    untrusted_output: bool = False
    repeatable: bool = False
    max_attempts: int | None = None
    cache_s: float | None = None
    fallback: str | None = None
    queues: tuple[str, ...] = ()
    digest: str
    created_at: datetime
    created_by: str | None = None
    definition: dict[str, Any] | None = None


class ImportedTool(View):
    """What became of one operation of a document."""

    operation: str
    name: str
    version: str | None = None
    changed: bool
    effect: str
    warnings: tuple[str, ...] = ()
    definition: dict[str, Any]


class SkippedOperation(View):
    """An operation of which no tool was made, and why."""

    operation: str
    reason: str


class ImportedTools(View):
    """The outcome of an import."""

    tools: tuple[ImportedTool, ...] = ()
    skipped: tuple[SkippedOperation, ...] = ()
    dry_run: bool = False


class EgressRules(View):
    """Where the tenant's own requests may go."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    changed_at: datetime | None = None
    changed_by: str | None = None


class McpCheck(View):
    """What the last look at an MCP server found."""

    ok: bool
    at: datetime | None = None
    ms: float = 0.0
    protocol: str | None = None
    server: str | None = None
    tools: int | None = None
    code: str | None = None
    error: str | None = None
    stderr: str | None = None


class McpServer(View):
    """An MCP server of the tenant."""

    id: str
    name: str
    transport: str
    command: list[str] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    effects: dict[str, str] = Field(default_factory=dict)
    timeout_s: float | None = None
    listed_digest: str | None = None
    listed_at: datetime | None = None
    check: McpCheck | None = None
    created_at: datetime | None = None
    created_by: str = ""
    updated_at: datetime | None = None


class McpTool(View):
    """A tool of an MCP server: what was accepted of it and what is listed now."""

    name: str
    tool: str
    state: str
    effect: str
    problem: str | None = None
    accepted: dict[str, Any] | None = None
    accepted_digest: str | None = None
    accepted_at: datetime | None = None
    accepted_by: str | None = None
    listed: dict[str, Any] | None = None
    listed_digest: str | None = None
    diff: list[str] = Field(default_factory=list)


class McpAccepted(View):
    """The names of tools that are accepted now and were not before."""

    accepted: list[str]


class _Breaker(View):
    """What is known of what failed lately: `open`, `half_open` or `closed`."""

    state: str
    failures: int = 0
    successes: int = 0
    opens: int = 0
    reason: str = ""
    opened_at: datetime | None = None
    until: datetime | None = None
    updated_at: datetime | None = None


class Breaker(_Breaker):
    """The breaker of a tool."""

    tool: str


class ModelBreaker(_Breaker):
    """The breaker of a model."""

    model: str
