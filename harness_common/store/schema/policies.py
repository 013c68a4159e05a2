"""Rules about tool calls: versions of a tenant's own, and of those of its agents."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, json_, metadata, text_, when

policies = Table(
    "policies",
    metadata,
    id_("tenant_id"),
    text_("agent_name"),
    int_("version", 1),
    text_("source"),
    json_("rules"),
    text_("digest"),
    when("created_at", now=True),
    text_("created_by"),
    PrimaryKeyConstraint("tenant_id", "agent_name", "version"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Versions never change; the empty agent name is the whole tenant's.",
)
