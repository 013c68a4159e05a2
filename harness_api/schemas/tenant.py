"""The tenant, worker processes and the audit trail on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time


class TenantLimits(Output):
    """What a tenant may use."""

    max_running: int


class TenantView(Output):
    """The tenant of the key, and what it has going."""

    id: str
    name: str
    limits: TenantLimits
    running: int
    queued: int


class TenantLimitsPatch(Input):
    """The limits to change."""

    max_running: Annotated[int, Field(ge=0, le=1_000_000)]


class WorkerView(Output):
    """A worker process: one life of it has one `incarnation`."""

    incarnation: str
    name: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    held: int
    version: str
    started_at: Time
    seen_at: Time
    stopping_at: Time | None
    died_at: Time | None
    died_why: str | None


class AuditView(Output):
    """One change that somebody asked for."""

    id: str
    at: Time
    actor: str
    action: str
    target: str
    request_id: str | None
    detail: dict[str, Any]
