"""The tables, as SQLAlchemy Core metadata. Alembic owns the database; a test compares the two.

Every table has `tenant_id`, and every unique key includes it. `events` and `checkpoints` are
range-partitioned on `run_id` (UUIDv7 is time-ordered), see `store.partitions`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def _id(name: str, *, null: bool = False) -> Column[Any]:
    return Column(name, Uuid, nullable=null)


def _new_id(name: str = "id") -> Column[Any]:
    return Column(name, Uuid, nullable=False, server_default=text("uuid7()"))


def _when(name: str, *, now: bool = False, null: bool = True) -> Column[Any]:
    return Column(
        name,
        DateTime(timezone=True),
        nullable=null and not now,
        server_default=text("clock_timestamp()") if now else None,
    )


def _json(name: str, default: str | None = "{}") -> Column[Any]:
    return Column(
        name,
        JSONB(none_as_null=True),
        nullable=default is None,
        server_default=text(f"'{default}'::jsonb") if default is not None else None,
    )


def _text(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(
        name, Text, nullable=null, server_default=text(f"'{default}'") if default else None
    )


def _int(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    return Column(
        name,
        Integer,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def _flag(name: str) -> Column[Any]:
    return Column(name, Boolean, nullable=False, server_default=text("false"))


def _float(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    return Column(
        name,
        Double,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def _big(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    return Column(
        name,
        BigInteger,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def _rates() -> list[Column[Any]]:
    """Make the columns of limits of a tenant and of the platform (null: none), and of how far ahead
    of now each rate is charged.
    """
    return [
        _float("starts_per_s", None, null=True),
        _float("steps_per_s", None, null=True),
        _big("tokens_per_day", None, null=True),
        _float("cost_usd_per_day", None, null=True),
        _when("starts_tat"),
        _when("steps_tat"),
        _when("places_tat"),
    ]


tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Uuid, server_default=text("uuid7()"), primary_key=True),
    _text("name"),
    _when("created_at", now=True),
    _flag("operator"),
    UniqueConstraint("name"),
)

tenant_slots = Table(
    "tenant_slots",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    _int("running"),
    _int("max_running"),
    _int("granted"),
    _when("last_admitted_at"),
    _float("weight", 1),
    _float("used_s"),
    _float("turn_sum"),
    _flag("crowded"),
    *_rates(),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    postgresql_with={"fillfactor": 50},
    comment="Running runs of a tenant, its own limit, and its block of the global limit.",
)

platform = Table(
    "platform",
    metadata,
    Column("name", Text, primary_key=True),
    _int("max_running", None, null=True),
    *_rates(),
    comment="Limits over all tenants: one row; tenant-less on purpose.",
)

tenant_days = Table(
    "tenant_days",
    metadata,
    _id("tenant_id"),
    Column("day", Date, nullable=False),
    _big("tokens"),
    _float("cost_usd"),
    _big("reserved_tokens"),
    _float("reserved_usd"),
    PrimaryKeyConstraint("tenant_id", "day"),
    comment="What a tenant with a daily limit used and has reserved; the nil UUID is the platform.",
)

throttles = Table(
    "throttles",
    metadata,
    Column("scope", Text, primary_key=True),
    _when("until"),
    _when("next_at"),
    _float("interval_s"),
    _float("limit_per_s", None, null=True),
    _text("code"),
    _text("reason"),
    _int("hits"),
    _when("since", now=True),
    _when("updated_at", now=True),
    comment="What a provider told us to slow down, for all who share it; tenant-less on purpose.",
)

api_keys = Table(
    "api_keys",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _text("name"),
    _text("public_id"),
    Column("secret_hash", LargeBinary, nullable=False),
    _text("role"),
    Column("scopes", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    _when("created_at", now=True),
    _when("expires_at"),
    _when("revoked_at"),
    _when("last_used_at"),
    Column("rotated_from", Uuid),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("public_id", "tenant_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
)

agents = Table(
    "agents",
    metadata,
    _id("tenant_id"),
    _text("name"),
    _int("version", 1),
    _new_id(),
    _json("spec"),
    _text("digest"),
    _when("created_at", now=True),
    _text("created_by"),
    PrimaryKeyConstraint("tenant_id", "name", "version"),
    UniqueConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
)

sessions = Table(
    "sessions",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _text("title", null=True),
    _text("user_id", null=True),
    _json("metadata"),
    _id("head_run_id", null=True),
    _when("created_at", now=True),
    _when("closed_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
)

runs = Table(
    "runs",
    metadata,
    _id("tenant_id"),
    _id("id"),
    _id("session_id"),
    _id("agent_id"),
    _text("agent_name"),
    _int("agent_version", None),
    # control: what advance() reads and writes
    _text("status"),
    _int("version"),
    _int("step"),
    _text("next_kind"),
    _int("turn"),
    _int("failures"),
    _int("limited"),
    _int("deaths"),
    _int("messages"),
    _json("memo"),
    _flag("started"),
    _flag("cancel_requested"),
    _when("not_before"),
    _text("stop_reason", null=True),
    _json("error", None),
    _text("output", null=True),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    _json("limits"),
    _json("retry"),
    # ownership
    _int("fence"),
    _id("claim_id", null=True),
    _id("claimed_by", null=True),
    _when("claimed_at"),
    _int("attempt"),
    _id("committed_by", null=True),
    # dispatch
    _text("queue"),
    Column("priority", SmallInteger, nullable=False, server_default=text("6")),
    _when("wake_at"),
    _when("rung_at"),
    _int("rings"),
    # outside inputs and events
    _int("last_input_n"),
    Column("next_seq", Integer, nullable=False, server_default=text("1")),
    # about
    _text("input"),
    _json("tags"),
    _text("created_by"),
    _text("trace_id"),
    _id("prev_run_id", null=True),
    _id("forked_from", null=True),
    _int("forked_step", None, null=True),
    _json("overrides"),
    # control from outside
    _flag("pause_requested"),
    _json("waiting", None),
    # turns, limits and order
    _when("turn_at"),
    _text("held_for", null=True),
    _text("concurrency_key", null=True),
    _int("concurrency_max", 1),
    _big("reserved_tokens"),
    _float("reserved_usd"),
    Column("reserved_day", Date),
    # family
    _id("parent_run_id", null=True),
    _int("parent_step", None, null=True),
    _int("parent_idx", None, null=True),
    _int("depth"),
    _when("created_at", now=True),
    _when("queued_at", now=True),
    _when("started_at"),
    _when("finished_at"),
    _when("updated_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id", "session_id"], ["sessions.tenant_id", "sessions.id"]),
    ForeignKeyConstraint(["tenant_id", "agent_id"], ["agents.tenant_id", "agents.id"]),
    Index("runs_due_idx", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
    Index(
        "runs_queue_idx",
        "tenant_id",
        "queue",
        "started",
        "priority",
        "queued_at",
        postgresql_where=text("status = 'queued' AND held_for IS NULL"),
    ),
    Index(
        "runs_held_idx",
        "tenant_id",
        "concurrency_key",
        "queued_at",
        postgresql_where=text("status = 'queued' AND held_for = 'key'"),
    ),
    Index(
        "runs_behind_idx",
        "tenant_id",
        "prev_run_id",
        postgresql_where=text("status = 'queued' AND held_for = 'session'"),
    ),
    Index(
        "runs_keyed_idx",
        "tenant_id",
        "concurrency_key",
        postgresql_where=text(
            "concurrency_key IS NOT NULL AND "
            "(status = 'running' OR (status = 'queued' AND held_for IS NULL))"
        ),
    ),
    Index(
        "runs_parent_idx",
        "tenant_id",
        "parent_run_id",
        "parent_step",
        "parent_idx",
        unique=True,
        postgresql_where=text("parent_run_id IS NOT NULL"),
    ),
    Index(
        "runs_live_children_idx",
        "tenant_id",
        "parent_run_id",
        postgresql_where=text("parent_run_id IS NOT NULL AND finished_at IS NULL"),
    ),
    Index(
        "runs_forked_idx",
        "tenant_id",
        "forked_from",
        postgresql_where=text("forked_from IS NOT NULL"),
    ),
    Index("runs_owner_idx", "claimed_by", postgresql_where=text("claim_id IS NOT NULL")),
    Index("runs_session_idx", "tenant_id", "session_id", "id"),
    postgresql_with={"fillfactor": 70},
)

inputs = Table(
    "inputs",
    metadata,
    _id("tenant_id"),
    _id("run_id"),
    _int("n", None),
    _text("kind"),
    _json("body"),
    _text("created_by"),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "n"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _id("tenant_id"),
    _id("run_id"),
    _int("step", None),
    _int("version", None),
    _text("kind"),
    _json("delta"),
    Column("snapshot", LargeBinary),
    _id("claim_id", null=True),
    _id("worker", null=True),
    _int("fence"),
    _int("attempt"),
    _when("started_at"),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "step"),
    postgresql_partition_by="RANGE (run_id)",
)

messages = Table(
    "messages",
    metadata,
    _id("tenant_id"),
    _id("run_id"),
    _int("n", None),
    _int("step", None),
    _text("role"),
    _text("trust"),
    Column("body", JSON, nullable=False),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "n"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    _id("tenant_id"),
    _id("run_id"),
    _int("step", None),
    _int("idx", None),
    _text("tool_use_id"),
    _text("name"),
    _text("tool_version", null=True),
    Column("arguments", JSON, nullable=False),
    _text("fingerprint", null=True),
    _text("effect", null=True),
    _text("status"),
    _id("attempt_id", null=True),
    _int("attempt"),
    _text("result", null=True),
    _text("error_type", null=True),
    _text("trust", null=True),
    Column("artifacts", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("duration_ms", Double),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    _when("resume_at"),
    _json("evidence", None),
    _int("authorised", 1),
    _json("resolution", None),
    _big("input_tokens"),
    _big("output_tokens"),
    _when("created_at", now=True),
    _when("started_at"),
    _when("finished_at"),
    PrimaryKeyConstraint("tenant_id", "run_id", "step", "idx"),
    Index(
        "tool_calls_unknown_idx",
        "tenant_id",
        "run_id",
        postgresql_where=text("status = 'unknown'"),
    ),
)

approvals = Table(
    "approvals",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _id("run_id"),
    _int("step", None),
    _int("idx", None),
    _text("digest"),
    _text("status"),
    _json("shown"),
    _when("created_at", now=True),
    _when("expires_at"),
    _when("decided_at"),
    _text("decided_by", null=True),
    _text("reason", null=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("approvals_run_idx", "tenant_id", "run_id"),
)

events = Table(
    "events",
    metadata,
    _id("tenant_id"),
    _id("run_id"),
    _int("seq", None),
    _text("type"),
    _int("step", None, null=True),
    _json("payload"),
    _when("at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "seq"),
    postgresql_partition_by="RANGE (run_id)",
)

artifacts = Table(
    "artifacts",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _id("run_id", null=True),
    _text("name"),
    _text("media_type"),
    _text("sha256"),
    Column("size_bytes", BigInteger, nullable=False),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("artifacts_run_idx", "tenant_id", "run_id"),
)

memories = Table(
    "memories",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _text("scope"),
    _text("body"),
    _json("provenance"),
    _when("created_at", now=True),
    _when("expires_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
)

schedules = Table(
    "schedules",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _text("name"),
    _json("spec"),
    _when("next_at"),
    _when("created_at", now=True),
    _when("last_at", now=True),
    _when("paused_at"),
    _text("pause_reason", null=True),
    _int("firings"),
    _int("waiting"),
    Column("open_runs", ARRAY(Uuid), nullable=False, server_default=text("'{}'::uuid[]")),
    Column("created_by", Text, nullable=False, server_default=text("''")),
    _when("updated_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "name"),
    Index("schedules_due_idx", "next_at", postgresql_where=text("next_at IS NOT NULL")),
    Index("schedules_waiting_idx", "tenant_id", "id", postgresql_where=text("waiting > 0")),
)

schedule_firings = Table(
    "schedule_firings",
    metadata,
    _id("tenant_id"),
    _id("schedule_id"),
    Column("at", DateTime(timezone=True), nullable=False),
    _id("run_id", null=True),
    _text("outcome"),
    _json("detail"),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "schedule_id", "at"),
    ForeignKeyConstraint(
        ["tenant_id", "schedule_id"], ["schedules.tenant_id", "schedules.id"], ondelete="CASCADE"
    ),
    Index("schedule_firings_created_at_idx", "created_at"),
    Index(
        "schedule_firings_waiting_idx",
        "tenant_id",
        "schedule_id",
        "at",
        postgresql_where=text("outcome = 'waiting'"),
    ),
    comment="What became of each time of a schedule: its key makes one firing one run.",
)

webhooks = Table(
    "webhooks",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _text("url"),
    Column("types", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    _when("created_at", now=True),
    _when("disabled_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _id("webhook_id"),
    _json("body"),
    _text("status"),
    _int("attempt"),
    _when("next_at"),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
)

usage = Table(
    "usage",
    metadata,
    _id("tenant_id"),
    _text("day"),
    _text("model"),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Numeric(18, 9), nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("tenant_id", "day", "model"),
)

audit = Table(
    "audit",
    metadata,
    _id("tenant_id"),
    _new_id(),
    _when("at", now=True),
    _text("actor"),
    _text("action"),
    _text("target"),
    _text("request_id", null=True),
    _json("detail"),
    PrimaryKeyConstraint("tenant_id", "id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    _id("tenant_id"),
    _text("route"),
    _text("key"),
    _text("body_digest"),
    _id("run_id", null=True),
    Column("status_code", Integer),
    _json("answer", None),
    _when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "route", "key"),
    Index("idempotency_keys_created_at_idx", "created_at"),
)

workers = Table(
    "workers",
    metadata,
    Column("incarnation", Uuid, primary_key=True),
    _text("name"),
    _text("host"),
    _int("pid", None),
    Column("queues", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    _int("concurrency"),
    _int("held"),
    Column("queue_age_s", Double, nullable=False, server_default=text("0")),
    _text("version"),
    _when("started_at", now=True),
    _when("seen_at", now=True),
    _when("stopping_at"),
    _when("died_at"),
    _text("died_why", null=True),
    comment="Worker processes; tenant-less on purpose: a process serves every tenant.",
)

leader = Table(
    "leader",
    metadata,
    Column("name", Text, primary_key=True),
    Column("term", BigInteger, nullable=False, server_default=text("0")),
    _id("holder", null=True),
    _text("holder_name", null=True),
    _when("until"),
    comment="One row a leadership; tenant-less on purpose.",
)
