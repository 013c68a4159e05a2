"""Sessions on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from harness_api.schemas.base import Input, Output, Time


class SessionCreate(Input):
    """A conversation to open. `metadata` is the caller's own."""

    title: Annotated[str, Field(max_length=500)] | None = None
    user_id: Annotated[str, Field(max_length=200)] | None = None
    metadata: Annotated[dict[str, JsonValue], Field(max_length=100)] = Field(default_factory=dict)


class SessionMessageView(Output):
    """One message of a conversation: of which run, and what was said."""

    run_id: str
    n: int
    step: int
    role: str
    trust: str
    content: list[dict[str, Any]]
    created_at: Time


class SessionView(Output):
    """A session as it is now; its status follows from its runs."""

    id: str
    title: str | None
    user_id: str | None
    metadata: dict[str, Any]
    status: Literal["created", "running", "idle", "requires_action", "closed"]
    created_at: Time
    closed_at: Time | None
    head_run_id: str | None
    memory_summary: str | None
    """A line for each of its last runs: asked → answered; less than 2 KB."""
