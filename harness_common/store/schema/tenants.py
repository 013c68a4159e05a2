"""Who uses the platform: tenants, their limits and keys, agents, what was used and done."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from harness_common.store.schema.columns import (
    big,
    flag,
    float_,
    id_,
    int_,
    json_,
    metadata,
    new_id,
    rates,
    text_,
    when,
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Uuid, server_default=text("uuid7()"), primary_key=True),
    text_("name"),
    when("created_at", now=True),
    flag("operator"),
    when("encrypted_since"),
    UniqueConstraint("name"),
)


tenant_slots = Table(
    "tenant_slots",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    int_("running"),
    int_("max_running"),
    int_("granted"),
    when("last_admitted_at"),
    float_("weight", 1),
    float_("used_s"),
    float_("turn_sum"),
    flag("crowded"),
    *rates(),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    postgresql_with={"fillfactor": 50},
    comment="Running runs of a tenant, its own limit, and its block of the global limit.",
)


platform = Table(
    "platform",
    metadata,
    Column("name", Text, primary_key=True),
    int_("max_running", None, null=True),
    *rates(),
    comment="Limits over all tenants: one row; tenant-less on purpose.",
)


tenant_days = Table(
    "tenant_days",
    metadata,
    id_("tenant_id"),
    Column("day", Date, nullable=False),
    big("tokens"),
    float_("cost_usd"),
    big("reserved_tokens"),
    float_("reserved_usd"),
    PrimaryKeyConstraint("tenant_id", "day"),
    comment="What a tenant with a daily limit used and has reserved; the nil UUID is the platform.",
)


throttles = Table(
    "throttles",
    metadata,
    Column("scope", Text, primary_key=True),
    when("until"),
    when("next_at"),
    float_("interval_s"),
    float_("limit_per_s", None, null=True),
    text_("code"),
    text_("reason"),
    int_("hits"),
    when("since", now=True),
    when("updated_at", now=True),
    comment="What a provider told us to slow down, for all who share it; tenant-less on purpose.",
)


api_keys = Table(
    "api_keys",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("name"),
    text_("public_id"),
    Column("secret_hash", LargeBinary, nullable=False),
    text_("role"),
    Column("scopes", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    when("created_at", now=True),
    when("expires_at"),
    when("revoked_at"),
    when("last_used_at"),
    Column("rotated_from", Uuid),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("public_id", "tenant_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
)


agents = Table(
    "agents",
    metadata,
    id_("tenant_id"),
    text_("name"),
    int_("version", 1),
    new_id(),
    json_("spec"),
    text_("digest"),
    when("created_at", now=True),
    text_("created_by"),
    PrimaryKeyConstraint("tenant_id", "name", "version"),
    UniqueConstraint("tenant_id", "id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
)


usage = Table(
    "usage",
    metadata,
    id_("tenant_id"),
    text_("day"),
    text_("model"),
    Column("input_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Numeric(18, 9), nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("tenant_id", "day", "model"),
)


audit = Table(
    "audit",
    metadata,
    id_("tenant_id"),
    new_id(),
    when("at", now=True),
    text_("actor"),
    text_("action"),
    text_("target"),
    text_("request_id", null=True),
    json_("detail"),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("audit_target_head_idx", "tenant_id", text("split_part(target, '.'::text, 1)")),
    Index("audit_actor_idx", "tenant_id", "actor", "id"),
    Index("audit_target_idx", "tenant_id", "target", "id"),
    # Nearly every row is the start of a run: found without an index of it.
    Index(
        "audit_action_idx",
        "tenant_id",
        "action",
        "id",
        postgresql_where=text("action <> 'run.create'"),
    ),
)


idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    id_("tenant_id"),
    text_("route"),
    text_("key"),
    text_("body_digest"),
    id_("run_id", null=True),
    Column("status_code", Integer),
    json_("answer", None),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "route", "key"),
    Index("idempotency_keys_created_at_idx", "created_at"),
    Index("idempotency_keys_run_idx", "tenant_id", "run_id"),
)
