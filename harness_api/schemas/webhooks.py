"""Webhooks on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time

EventType = Literal[
    "run.succeeded", "run.failed", "run.cancelled", "approval.requested", "budget.exceeded"
]


class WebhookCreate(Input):
    """Whom to tell of what."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s@\\{}]+$", max_length=2_000)]
    types: Annotated[list[EventType], Field(min_length=1, max_length=10)]


class WebhookView(Output):
    """A webhook."""

    id: str
    url: str
    types: list[str]
    status: Literal["enabled", "disabled"]
    disabled_at: Time | None
    disabled_why: str | None
    failures: int
    """Deliveries in a row that were given up; five disable it."""
    created_at: Time
    created_by: str
    rotated_at: Time | None


class WebhookSecret(WebhookView):
    """A webhook with its signing secret."""

    secret: str


class DeliveryView(Output):
    """One thing told, or to be told; `id` is the header `webhook-id` of every attempt."""

    id: str
    webhook_id: str
    type: str
    run_id: str | None
    status: Literal["pending", "held", "delivered", "failed"]
    attempts: int
    response_status: int | None
    error: str | None
    next_at: Time | None
    created_at: Time
    delivered_at: Time | None
