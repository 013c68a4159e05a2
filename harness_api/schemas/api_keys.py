"""API keys on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness_api.schemas.base import Input, InputTime, Output, Time

Role = Literal["viewer", "operator", "approver", "admin"]
Permission = Literal[
    "runs:read",
    "runs:write",
    "agents:read",
    "agents:write",
    "sessions:read",
    "sessions:write",
    "schedules:read",
    "schedules:write",
    "artifacts:read",
    "approvals:read",
    "approvals:write",
    "effects:read",
    "effects:write",
    "policies:read",
    "policies:write",
    "secrets:read",
    "secrets:write",
    "skills:read",
    "skills:write",
    "tools:read",
    "tools:write",
    "webhooks:read",
    "webhooks:write",
    "egress:read",
    "egress:write",
    "tenant:read",
    "tenant:write",
    "workers:read",
    "memories:read",
    "memories:write",
    "mcp:read",
    "mcp:write",
    "keys:read",
    "keys:write",
    "audit:read",
    "data:read",
    "data:erase",
    "platform:read",
    "platform:write",
]


class ApiKeyCreate(Input):
    """A key to make. Scopes narrow it to some of what its role allows; none means all of it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    role: Role
    scopes: Annotated[list[Permission], Field(max_length=50)] = Field(default_factory=list)
    expires_at: InputTime | None = None


class ApiKeyRotate(Input):
    """How long the old key lives beside the new one."""

    overlap_s: Annotated[int, Field(ge=0, le=30 * 86_400)] = 86_400


class ApiKeyView(Output):
    """A key without its secret."""

    id: str
    name: str
    public_id: str
    role: str
    scopes: list[str]
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None
    rotated_from: str | None


class ApiKeyCreated(ApiKeyView):
    """A new key, with the text that is shown this once."""

    secret: str
