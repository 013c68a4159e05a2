"""What agents remember between runs, one row a fact."""

from __future__ import annotations

from sqlalchemy import REAL, Column, Index, PrimaryKeyConstraint, Table, text
from sqlalchemy.dialects.postgresql import ARRAY, TSVECTOR

from harness_common.store.schema.columns import id_, json_, metadata, new_id, text_, when

memories = Table(
    "memories",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("scope"),
    text_("body"),
    json_("provenance"),
    when("created_at", now=True),
    when("expires_at"),
    text_("user_id", null=True),
    text_("kind", default="fact"),
    text_("trust", default="trusted"),
    text_("digest", null=True),
    Column("words", TSVECTOR),
    Column("embedding", ARRAY(REAL)),
    text_("embedded_by", null=True),
    text_("sealed", null=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index(
        "memories_fact_idx",
        "tenant_id",
        "scope",
        "user_id",
        "digest",
        unique=True,
        postgresql_nulls_not_distinct=True,
    ),
    Index(
        "memories_expiry_idx",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
    Index("memories_run_idx", "tenant_id", text("(provenance ->> 'run'::text)")),
    comment="user_id: null is shared, '' nobody's. What is encrypted has no words.",
)
