"""Runs and what belongs to one: sessions, inputs, checkpoints, messages, events, artifacts."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from harness_common.store.schema.columns import (
    big,
    flag,
    float_,
    id_,
    int_,
    json_,
    metadata,
    new_id,
    text_,
    when,
)

sessions = Table(
    "sessions",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("title", null=True),
    text_("user_id", null=True),
    json_("metadata"),
    id_("head_run_id", null=True),
    when("created_at", now=True),
    when("closed_at"),
    text_("memory_summary", null=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index(
        "sessions_user_idx",
        "tenant_id",
        "user_id",
        "id",
        postgresql_where=text("user_id IS NOT NULL"),
    ),
    # Less than 2 KB; what is encrypted is longer than what it says.
    CheckConstraint(
        "octet_length(memory_summary) < 2048 OR "
        "(memory_summary LIKE 'hsealed1.%' AND octet_length(memory_summary) < 3072)",
        name="sessions_memory_summary_check",
    ),
)


runs = Table(
    "runs",
    metadata,
    id_("tenant_id"),
    id_("id"),
    id_("session_id"),
    id_("agent_id"),
    text_("agent_name"),
    int_("agent_version", None),
    # control: what advance() reads and writes
    text_("status"),
    int_("version"),
    int_("step"),
    text_("next_kind"),
    int_("turn"),
    int_("failures"),
    int_("limited"),
    int_("deaths"),
    int_("messages"),
    json_("memo"),
    flag("started"),
    flag("cancel_requested"),
    when("not_before"),
    text_("stop_reason", null=True),
    json_("error", None),
    text_("output", null=True),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    json_("limits"),
    json_("retry"),
    # ownership
    int_("fence"),
    id_("claim_id", null=True),
    id_("claimed_by", null=True),
    when("claimed_at"),
    int_("attempt"),
    id_("committed_by", null=True),
    # dispatch
    text_("queue"),
    Column("priority", SmallInteger, nullable=False, server_default=text("6")),
    when("wake_at"),
    when("rung_at"),
    int_("rings"),
    # outside inputs and events
    int_("last_input_n"),
    Column("next_seq", Integer, nullable=False, server_default=text("1")),
    # about
    text_("input"),
    json_("tags"),
    text_("created_by"),
    text_("trace_id"),
    id_("prev_run_id", null=True),
    id_("forked_from", null=True),
    int_("forked_step", None, null=True),
    json_("overrides"),
    # control from outside
    flag("pause_requested"),
    json_("waiting", None),
    # turns, limits and order
    when("turn_at"),
    text_("held_for", null=True),
    text_("concurrency_key", null=True),
    int_("concurrency_max", 1),
    big("reserved_tokens"),
    float_("reserved_usd"),
    Column("reserved_day", Date),
    # family
    id_("parent_run_id", null=True),
    int_("parent_step", None, null=True),
    int_("parent_idx", None, null=True),
    int_("depth"),
    when("created_at", now=True),
    when("queued_at", now=True),
    when("started_at"),
    when("finished_at"),
    when("updated_at", now=True),
    Column("pruned", SmallInteger, nullable=False, server_default=text("0")),
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
    Index("runs_running_idx", "queue", postgresql_where=text("status = 'running'")),
    Index("runs_session_idx", "tenant_id", "session_id", "id"),
    Index(
        "runs_age_idx",
        "tenant_id",
        "pruned",
        "finished_at",
        "id",
        postgresql_where=text("finished_at IS NOT NULL"),
    ),
    Index(
        "runs_finished_idx",
        "tenant_id",
        "finished_at",
        postgresql_where=text("finished_at IS NOT NULL"),
    ),
    Index(
        "runs_ended_idx",
        "tenant_id",
        "status",
        "id",
        postgresql_where=text("finished_at IS NOT NULL"),
    ),
    Index(
        "runs_waiting_idx",
        "tenant_id",
        "id",
        postgresql_where=text(
            "status IN ('waiting_approval', 'waiting_input', 'waiting_tool', 'waiting_children', "
            "'delayed', 'paused')"
        ),
    ),
    postgresql_with={"fillfactor": 70},
)


inputs = Table(
    "inputs",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("n", None),
    text_("kind"),
    json_("body"),
    text_("created_by"),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "n"),
)


checkpoints = Table(
    "checkpoints",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("step", None),
    int_("version", None),
    text_("kind"),
    json_("delta"),
    Column("snapshot", LargeBinary),
    id_("claim_id", null=True),
    id_("worker", null=True),
    int_("fence"),
    int_("attempt"),
    when("started_at"),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "step"),
    postgresql_partition_by="RANGE (run_id)",
)


messages = Table(
    "messages",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("n", None),
    int_("step", None),
    text_("role"),
    text_("trust"),
    Column("body", JSON, nullable=False),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "n"),
)


events = Table(
    "events",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("seq", None),
    text_("type"),
    int_("step", None, null=True),
    json_("payload"),
    when("at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "seq"),
    postgresql_partition_by="RANGE (run_id)",
)


artifacts = Table(
    "artifacts",
    metadata,
    id_("tenant_id"),
    new_id(),
    id_("run_id", null=True),
    text_("name"),
    text_("media_type"),
    text_("sha256"),
    Column("size_bytes", BigInteger, nullable=False),
    when("created_at", now=True),
    text_("sealed", null=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("artifacts_run_idx", "tenant_id", "run_id"),
    Index("artifacts_sha256_idx", "sha256"),
)
