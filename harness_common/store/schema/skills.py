"""Skills of tenants: versions that never change."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, json_, metadata, new_id, text_, when

skills = Table(
    "skills",
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
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Versions never change; runs pin them.",
)
