"""What keeps the platform going: schedules, webhooks, processes, the leader."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from harness_common.store.schema.columns import id_, int_, json_, metadata, new_id, text_, when

schedules = Table(
    "schedules",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("name"),
    json_("spec"),
    when("next_at"),
    when("created_at", now=True),
    when("last_at", now=True),
    when("paused_at"),
    text_("pause_reason", null=True),
    int_("firings"),
    int_("waiting"),
    Column("open_runs", ARRAY(Uuid), nullable=False, server_default=text("'{}'::uuid[]")),
    Column("created_by", Text, nullable=False, server_default=text("''")),
    when("updated_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "name"),
    Index("schedules_due_idx", "next_at", postgresql_where=text("next_at IS NOT NULL")),
    Index("schedules_waiting_idx", "tenant_id", "id", postgresql_where=text("waiting > 0")),
)


schedule_firings = Table(
    "schedule_firings",
    metadata,
    id_("tenant_id"),
    id_("schedule_id"),
    Column("at", DateTime(timezone=True), nullable=False),
    id_("run_id", null=True),
    text_("outcome"),
    json_("detail"),
    when("created_at", now=True),
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
    id_("tenant_id"),
    new_id(),
    text_("url"),
    Column("types", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    when("created_at", now=True),
    when("disabled_at"),
    text_("disabled_why", null=True),
    Column("created_by", Text, nullable=False, server_default=text("''")),
    int_("secret_n", 1),
    when("rotated_at"),
    int_("failures"),
    PrimaryKeyConstraint("tenant_id", "id"),
    comment="Whom to tell; a trigger on events queues the deliveries in the same transaction.",
)


webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    id_("tenant_id"),
    new_id(),
    id_("webhook_id"),
    json_("body"),
    text_("status"),
    int_("attempt"),
    when("next_at"),
    when("created_at", now=True),
    Column("type", Text, nullable=False, server_default=text("''")),
    id_("run_id", null=True),
    int_("seq", None, null=True),
    int_("response_status", None, null=True),
    text_("error", null=True),
    when("delivered_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
    ForeignKeyConstraint(
        ["tenant_id", "webhook_id"], ["webhooks.tenant_id", "webhooks.id"], ondelete="CASCADE"
    ),
    Index("webhook_deliveries_due_idx", "next_at", postgresql_where=text("status = 'pending'")),
    Index("webhook_deliveries_hook_idx", "tenant_id", "webhook_id", "id"),
    Index("webhook_deliveries_created_at_idx", "created_at"),
    Index("webhook_deliveries_run_idx", "tenant_id", "run_id"),
)


workers = Table(
    "workers",
    metadata,
    Column("incarnation", Uuid, primary_key=True),
    text_("name"),
    text_("host"),
    int_("pid", None),
    Column("queues", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    int_("concurrency"),
    int_("held"),
    Column("queue_age_s", Double, nullable=False, server_default=text("0")),
    text_("version"),
    when("started_at", now=True),
    when("seen_at", now=True),
    when("stopping_at"),
    when("died_at"),
    text_("died_why", null=True),
    json_("plugins", "[]"),
    Column("sandbox", JSONB),
    comment="Worker processes; tenant-less on purpose: a process serves every tenant.",
)


leader = Table(
    "leader",
    metadata,
    Column("name", Text, primary_key=True),
    Column("term", BigInteger, nullable=False, server_default=text("0")),
    id_("holder", null=True),
    text_("holder_name", null=True),
    when("until"),
    comment="One row a leadership; tenant-less on purpose.",
)
