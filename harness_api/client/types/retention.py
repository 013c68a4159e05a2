"""Retention, erasures and storage, as the client returns them."""

from __future__ import annotations

from datetime import date, datetime

from pydantic import Field

from harness_api.client.types.view import View


class Retention(View):
    """How long things are kept: days by name; None is for ever, or as the settings say."""

    own: dict[str, int | None] = Field(default_factory=dict)
    holds: dict[str, int | None] = Field(default_factory=dict)
    changed_at: datetime | None = None
    changed_by: str | None = None


class ErasurePreview(View):
    """What an erasure would delete."""

    sessions: int
    runs: int
    live_runs: int = 0
    events: int = 0
    messages: int = 0
    artifacts: int = 0
    memories: int = 0


class Erasure(View):
    """An erasure and how far it is."""

    id: str
    subject: str
    tenant_id: str
    user_id: str | None = None
    phase: str
    counts: dict[str, int] = Field(default_factory=dict)
    asked_by: str = ""
    created_at: datetime
    finished_at: datetime | None = None


class TableSize(View):
    """A table with its indexes."""

    table: str
    rows: int
    bytes: int


class PartitionSize(TableSize):
    """A week of events or checkpoints."""

    week: date


class TenantShare(View):
    """What a tenant has, estimated, and what is past its age."""

    tenant_id: str
    name: str
    runs: int = 0
    events: int = 0
    steps: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_run_at: datetime | None = None
    artifacts: int = 0
    artifact_bytes: int = 0
    due_runs: int = 0
    due_events: int = 0
    due_checkpoints: int = 0
    due_artifacts: int = 0


class Storage(View):
    """What is stored."""

    database_bytes: int
    tables: tuple[TableSize, ...] = ()
    partitions: tuple[PartitionSize, ...] = ()
    tenants: tuple[TenantShare, ...] = ()
    is_sample: bool = False
    garbage_blobs: int = 0
