"""The tenant, worker processes and the audit trail on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from harness_api.paging import ID_PATTERN
from harness_api.schemas.base import Input, InputTime, Output, Time
from harness_api.schemas.runs import ShownStatus
from harness_common.store.audit_reads import AuditFilter


class Rates(Output):
    """What may be used a second and a day; null is no limit."""

    starts_per_s: float | None
    steps_per_s: float | None
    tokens_per_day: int | None
    cost_usd_per_day: float | None


class TenantLimits(Rates):
    """What a tenant may use, and its weight against others where they want the same slots."""

    max_running: int
    weight: float


class PlatformLimits(Rates):
    """What all tenants together may use; without `max_running` the setting counts."""

    max_running: int | None


class TenantView(Output):
    """The tenant of the key, and what it has going."""

    id: str
    name: str
    limits: TenantLimits
    running: int
    queued: int
    """Counted up to 10,000, in a list of tenants up to 1,000."""
    slot_seconds: float
    """Time that its runs have held slots: what its share is reckoned in."""


class PlatformView(Output):
    """The limits over all tenants, and what goes on."""

    limits: PlatformLimits
    running: int
    queued: int
    """Counted up to 10,000."""


def _unset(schema: dict[str, Any]) -> None:
    """Leave the default out: a limit that is not named stays as it is."""
    schema.pop("default", None)


class RatesPatch(Input):
    """The limits to change; null takes one off, and one that is not named stays as it is."""

    starts_per_s: Annotated[float | None, Field(ge=0.001, le=1_000_000)] = None
    steps_per_s: Annotated[float | None, Field(ge=0.001, le=1_000_000)] = None
    tokens_per_day: Annotated[int | None, Field(ge=0, le=10**15)] = None
    cost_usd_per_day: Annotated[float | None, Field(ge=0, le=1e12)] = None

    def changes(self) -> dict[str, float | None]:
        """Return what was named."""
        return self.model_dump(include=self.model_fields_set)


class TenantLimitsPatch(RatesPatch):
    """The limits of a tenant to change."""

    max_running: Annotated[int, Field(ge=0, le=1_000_000, json_schema_extra=_unset)] = 0
    weight: Annotated[float, Field(ge=0.01, le=1000, json_schema_extra=_unset)] = 1.0


class PlatformLimitsPatch(RatesPatch):
    """The limits over all tenants to change."""

    max_running: Annotated[int | None, Field(ge=0, le=1_000_000)] = None


class PluginView(Output):
    """A plugin of a worker; one with a `problem` brings nothing."""

    name: str
    package: str
    version: str
    parts: dict[str, list[str]]
    problem: str


class SandboxView(Output):
    """Which sandbox a worker has: the best tier that holds (A, B or none), and why no better."""

    tier: str
    why_not: dict[str, str]


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
    plugins: list[PluginView]
    """What installed packages bring to it."""
    sandbox: SandboxView | None
    """None until its self-test has ended."""


class WorkerRunView(Output):
    """A run of the tenant that a worker process works on now."""

    run_id: str
    agent: str
    status: ShownStatus
    step: int
    next_kind: str
    attempt: int
    claimed_at: Time
    held_s: float
    """How long the process has owned the run."""
    lease_left_s: float | None
    """For how long its lease still holds unless it is renewed, which a live process does every few
    seconds; null when there is none (it runs out, or Redis does not answer).
    """


class AuditQuery(BaseModel):
    """Which rows of the audit trail to list; all that is given must hold."""

    model_config = ConfigDict(extra="forbid")

    actor: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="The id of a key, or who else did it."),
    ] = None
    action: Annotated[
        str | None,
        Field(pattern=r"^[a-z_]{1,50}[.][a-z_]{1,50}$", description="For example `run.cancel`."),
    ] = None
    target: Annotated[
        str | None,
        Field(min_length=1, max_length=300, description="What it was done to, as it is listed."),
    ] = None
    since: InputTime | None = None
    until: InputTime | None = None
    limit: Annotated[int, Field(ge=1, le=200, description="Entries a page.")] = 50
    cursor: Annotated[
        str | None, Field(pattern=ID_PATTERN, description="`next_cursor` of the page before.")
    ] = None

    def wanted(self) -> AuditFilter:
        """Return the filter as the store knows it."""
        return AuditFilter(self.actor, self.action, self.target, self.since, self.until)


class AuditView(Output):
    """One change that somebody asked for."""

    id: str
    at: Time
    actor: str
    action: str
    target: str
    request_id: str | None
    detail: dict[str, Any]
