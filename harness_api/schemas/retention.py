"""Retention, erasures and storage on the wire."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time
from harness_common.core.ids import PREFIXES

Days = Annotated[int | None, Field(ge=1, le=36_500)]


class AgesPatch(Input):
    """The ages to change, in days after the end of a run; null goes back to the settings, and one
    that is not named stays as it is.
    """

    events_days: Days = None
    checkpoints_days: Days = None
    artifacts_days: Days = None
    runs_days: Days = None

    def changes(self) -> dict[str, int | None]:
        """Return what was named."""
        return self.model_dump(include=self.model_fields_set)


class AgesSet(Output):
    """Ages in days; null is for ever, or as the settings say."""

    events_days: int | None
    checkpoints_days: int | None
    artifacts_days: int | None
    runs_days: int | None


class RetentionView(Output):
    """How long things are kept after the end of their run."""

    own: AgesSet
    """What the tenant has set; null is as the settings say."""
    holds: AgesSet
    """What counts; null is for ever."""
    changed_at: Time | None
    changed_by: str | None


class UserErase(Input):
    """Whose data to erase."""

    user_id: Annotated[str, Field(min_length=1, max_length=200)]


class TenantErase(Input):
    """Which tenant to erase."""

    tenant_id: Annotated[str, Field(pattern=f"^{PREFIXES['tenant']}[0-9a-f]{{32}}$")]


class ErasurePreview(Output):
    """What an erasure would delete."""

    sessions: int
    runs: int
    live_runs: int
    """They are cancelled first."""
    events: int
    messages: int
    artifacts: int
    memories: int


class ErasureView(Output):
    """An erasure: what it is about, and how far it is."""

    id: str
    subject: str
    tenant_id: str
    user_id: str | None
    """Forgotten when it is done."""
    phase: str
    """`stopping`, `erasing`, `blobs`, `done`."""
    counts: dict[str, int]
    """Rows deleted so far."""
    asked_by: str
    created_at: Time
    finished_at: Time | None


class TableSize(Output):
    """A table with its indexes; rows are an estimate."""

    table: str
    rows: int
    bytes: int


class PartitionSize(Output):
    """A week of events or checkpoints."""

    table: str
    week: date
    rows: int
    bytes: int


class TenantShare(Output):
    """What a tenant has, estimated, and what is past its age."""

    tenant_id: str
    name: str
    runs: int
    events: int
    steps: int
    messages: int
    bytes: int
    """Its share of the tables of runs, by the rows that it has in them."""
    oldest_run_at: Time | None
    artifacts: int
    artifact_bytes: int
    due_runs: int
    """Finished runs that the next rounds delete, counted up to 10,000; likewise below."""
    due_events: int
    due_checkpoints: int
    due_artifacts: int


class StorageView(Output):
    """What is stored, and what is next to be deleted."""

    database_bytes: int
    tables: list[TableSize]
    partitions: list[PartitionSize]
    tenants: list[TenantShare]
    is_sample: bool
    """Whether the tenants' numbers are reckoned from a sample of the runs."""
    garbage_blobs: int
    """Blobs that wait to be deleted."""
