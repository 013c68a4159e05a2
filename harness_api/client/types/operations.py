"""What keeps the platform going, as the client returns it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from harness_api.client.types.view import View


class Webhook(View):
    """Whom to tell of what."""

    id: str
    url: str
    types: tuple[str, ...] = ()
    status: str
    disabled_at: datetime | None = None
    disabled_why: str | None = None
    failures: int = 0
    created_at: datetime
    created_by: str = ""
    rotated_at: datetime | None = None
    secret: str = ""
    """Known when it is made and when the secret is rotated."""


class Delivery(View):
    """One thing told, or to be told."""

    id: str
    webhook_id: str
    type: str
    run_id: str | None = None
    status: str
    attempts: int = 0
    response_status: int | None = None
    error: str | None = None
    next_at: datetime | None = None
    created_at: datetime
    delivered_at: datetime | None = None


class Platform(View):
    """The limits over all tenants, and what goes on."""

    limits: dict[str, Any] = Field(default_factory=dict)
    running: int = 0
    queued: int = 0


class Worker(View):
    """One life of a worker process."""

    incarnation: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    held: int = 0
    version: str = ""
    started_at: datetime
    seen_at: datetime
    stopping_at: datetime | None = None
    died_at: datetime | None = None
    died_why: str | None = None
    plugins: tuple[dict[str, Any], ...] = ()
    sandbox: dict[str, Any] | None = None


class WorkerRun(View):
    """A run that a worker process works on now."""

    run_id: str
    agent: str
    status: str
    step: int
    next_kind: str
    attempt: int = 0
    claimed_at: datetime
    held_s: float
    lease_left_s: float | None = None


class Schedule(View):
    """When runs are started by themselves. `next` are its coming times."""

    id: str
    name: str
    status: str
    when: dict[str, Any] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)
    overlap: str = ""
    catch_up: str = ""
    window_s: float = 0.0
    jitter_s: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_firings: int | None = None
    firings: int = 0
    waiting: int = 0
    next_at: datetime | None = None
    next: tuple[datetime, ...] = ()
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime
    created_by: str = ""
    updated_at: datetime | None = None
    links: dict[str, str] = Field(default_factory=dict)


class Firing(View):
    """What became of one firing of a schedule: its run, or why there is none."""

    at: datetime
    outcome: str
    run_id: str | None = None
    reason: str | None = None
    until: datetime | None = None
    triggered_by: str | None = None
    created_at: datetime


class Throttle(View):
    """A provider's limit that holds back all who share its scope."""

    scope: str
    provider: str = ""
    model: str = ""
    credential: str = ""
    until: datetime
    next_at: datetime | None = None
    interval_s: float = 0.0
    limit_per_s: float | None = None
    code: str = ""
    reason: str = ""
    hits: int = 0
    since: datetime | None = None
    updated_at: datetime | None = None
    waiting: int = 0


class Readiness(View):
    """Whether the server can do its work: `ready`, or `degraded` without Redis."""

    status: str
    postgres: str = ""
    redis: str = ""
