"""What is decided about tool calls, as the client returns it: approvals, effects, policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from harness_api.client.types.view import View


class Approval(View):
    """A tool call that waits, or waited, for a person."""

    id: str
    run_id: str
    call: str
    agent: str = ""
    acting: str = ""
    run_status: str = ""
    tool: str
    tool_version: str = ""
    policy_version: str = ""
    effect: str | None = None
    arguments: Any = None
    digest: str
    preview: dict[str, Any] | None = None
    risk: str | None = None
    rule: str | None = None
    reasons: tuple[str, ...] = ()
    provenance: dict[str, Any] | None = None
    input_schema: Any = None
    approver_roles: tuple[str, ...] = ()
    four_eyes: bool = False
    status: str
    created_at: datetime
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    reason: str | None = None
    used_at: datetime | None = None
    original_arguments: Any = None
    original_digest: str | None = None
    edited_by: str | None = None


class Effect(View):
    """A tool call with what a person needs to decide about it."""

    run_id: str
    call: str
    tool: str
    arguments: Any = None
    effect: str | None = None
    status: str
    attempts: int = 0
    authorised: int = 1
    result: str | None = None
    error_type: str | None = None
    idempotency_key: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    why: str | None = None
    evidence: dict[str, Any] | None = None
    resolution: dict[str, Any] | None = None
    agent: str = ""
    acting: str = ""
    run_status: str = ""


class PolicyVersion(View):
    """One version of the rules about tool calls."""

    agent: str | None = None
    version: int
    source: str = ""
    rules: dict[str, Any] = Field(default_factory=dict)
    digest: str = ""
    created_at: datetime | None = None
    created_by: str = ""


class RuleLook(View):
    """One rule that was looked at: whether it decided, and why or why not."""

    layer: str
    rule: str
    matched: bool
    why: str


class Decision(View):
    """What policy says of a call, and how it came to that."""

    verdict: str
    rule: str | None = None
    reasons: tuple[str, ...] = ()
    version: str = ""
    risk: str = ""
    approvers: tuple[str, ...] = ()
    four_eyes: bool = False
    expires_s: float | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    facts_digest: str = ""
    looks: tuple[RuleLook, ...] = ()


class CallDecision(Decision):
    """The decision that was made about a call."""

    run_id: str
    call: str
    tool: str
    arguments: Any = None
    status: str = ""
    error_type: str | None = None
    same: bool = True
