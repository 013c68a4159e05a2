"""Approvals of tool calls on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from harness_api.schemas.base import Input, Output, Time
from harness_api.schemas.runs import ShownStatus
from harness_common.core.message import Json

ApprovalState = Literal["pending", "approved", "denied", "expired", "cancelled", "void", "used"]
Digest = Annotated[
    str,
    Field(
        pattern="^[0-9a-f]{64}$",
        description="`digest` of the approval as it was shown to whoever decides.",
    ),
]


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank: the model is told why")
    return text


class ApprovalApprove(Input):
    """A yes to the arguments that were shown, or to others."""

    expected_digest: Digest
    arguments: Annotated[
        dict[str, Any] | None,
        Field(description="To be used instead of those shown; null leaves them as they are."),
    ] = None
    reason: Annotated[str, Field(max_length=1000)] = ""


class ApprovalDeny(Input):
    """A no, and why: the model is told."""

    reason: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_said)]
    expected_digest: Digest | None = None


class Preview(Output):
    """What the call would do: the tool's own preview, or its arguments."""

    kind: Literal["tool", "arguments"]
    text: str
    failed: str | None = None
    """Why the tool's own preview is not here."""


class Provenance(Output):
    """Where a call comes from."""

    step: int
    """The model step that asked for it."""
    message: int | None
    """Its message, see `GET /v1/runs/{run_id}/messages`."""
    tainted: bool
    """Whether the model had read content from outside the tenant's control."""
    started_by: str | None
    """Who started the run: for four eyes, not who may approve."""


class ApprovalView(Output):
    """A tool call that waits, or waited, for a person, with what is needed to decide."""

    id: str
    run_id: str
    call: str
    agent: str
    acting: str
    """The agent under which the run goes on: another than `agent` after a hand-off."""
    run_status: ShownStatus
    tool: str
    tool_version: str
    policy_version: str
    effect: str | None
    arguments: Json
    digest: str
    preview: Preview | None
    risk: str | None
    rule: str | None
    reasons: list[str]
    provenance: Provenance | None
    input_schema: Json
    approver_roles: list[str]
    four_eyes: bool
    status: ApprovalState
    created_at: Time
    expires_at: Time | None
    decided_at: Time | None
    decided_by: str | None
    reason: str | None
    used_at: Time | None
    original_arguments: Json
    """What the model had asked for, when a person changed it."""
    original_digest: str | None
    edited_by: str | None
