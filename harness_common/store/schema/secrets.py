"""Secrets, and the wrapped data keys by which they and bodies are encrypted."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKeyConstraint, Index, LargeBinary, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, metadata, text_, when

tenant_keys = Table(
    "tenant_keys",
    metadata,
    id_("tenant_id"),
    int_("version", None),
    text_("kek_id"),
    Column("wrapped", LargeBinary, nullable=False),
    when("created_at", now=True),
    when("rewrapped_at"),
    PrimaryKeyConstraint("tenant_id", "version"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index("tenant_keys_kek_idx", "kek_id"),
    comment="Data keys, wrapped by a key-encryption key that is not in the database.",
)


secrets = Table(
    "secrets",
    metadata,
    id_("tenant_id"),
    text_("name"),
    int_("version", 1),
    Column("value", LargeBinary, nullable=False),
    when("created_at", now=True),
    when("set_at", now=True),
    text_("set_by"),
    when("last_used_at"),
    PrimaryKeyConstraint("tenant_id", "name"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Values are encrypted under the tenant's data key, bound to name and version.",
)
