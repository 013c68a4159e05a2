"""What prompts are made of besides messages."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, json_, metadata, text_, when

context_parts = Table(
    "context_parts",
    metadata,
    id_("tenant_id"),
    text_("digest"),
    json_("body"),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "digest"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="System texts and tool definitions, each once; the event of a model step names them.",
)
