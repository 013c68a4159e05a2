"""What prompts are made of besides messages."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, Index, PrimaryKeyConstraint, Table, text

from harness_common.store.schema.columns import id_, json_, metadata, text_, when

context_parts = Table(
    "context_parts",
    metadata,
    id_("tenant_id"),
    text_("digest"),
    json_("body"),
    when("created_at", now=True),
    id_("run_id", null=True),
    PrimaryKeyConstraint("tenant_id", "digest"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index(
        "context_parts_run_idx",
        "tenant_id",
        "run_id",
        postgresql_where=text("run_id IS NOT NULL"),
    ),
    comment="System texts and tool definitions, each once; what a run alone knows is that run's.",
)
