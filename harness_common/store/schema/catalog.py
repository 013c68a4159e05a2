"""Tools as data: those that tenants declare, what workers have, and where requests may go."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKeyConstraint,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from harness_common.store.schema.columns import flag, id_, int_, metadata, new_id, text_, when

_NONE = text("'{}'::text[]")

tenant_tools = Table(
    "tenant_tools",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("name"),
    int_("version"),
    text_("kind"),
    flag("disabled"),
    when("removed_at"),
    when("created_at", now=True),
    when("changed_at", now=True),
    text_("changed_by"),
    PrimaryKeyConstraint("tenant_id", "name"),
    UniqueConstraint("tenant_id", "id"),
    comment="A tenant's tools and the version of each that counts; a removed one keeps its number.",
)


tool_versions = Table(
    "tool_versions",
    metadata,
    id_("tenant_id"),
    text_("name"),
    int_("version", None),
    Column("definition", JSON, nullable=False),
    text_("digest"),
    when("created_at", now=True),
    text_("created_by"),
    PrimaryKeyConstraint("tenant_id", "name", "version"),
    ForeignKeyConstraint(
        ["tenant_id", "name"], ["tenant_tools.tenant_id", "tenant_tools.name"], ondelete="CASCADE"
    ),
    comment="Never changed once written.",
)


tool_specs = Table(
    "tool_specs",
    metadata,
    Column("digest", Text, primary_key=True),
    text_("name"),
    Column("spec", JSON, nullable=False),
    when("created_at", now=True),
    comment="Specifications of the tools of workers; tenant-less: a worker serves everybody.",
)


worker_tools = Table(
    "worker_tools",
    metadata,
    Column("incarnation", Uuid, primary_key=True),
    Column("digests", ARRAY(Text), nullable=False, server_default=_NONE),
    ForeignKeyConstraint(["incarnation"], ["workers.incarnation"], ondelete="CASCADE"),
    comment="Which tools a worker process has; tenant-less on purpose.",
)


egress_rules = Table(
    "egress_rules",
    metadata,
    id_("tenant_id"),
    Column("allow", ARRAY(Text), nullable=False, server_default=_NONE),
    Column("deny", ARRAY(Text), nullable=False, server_default=_NONE),
    when("changed_at", now=True),
    text_("changed_by"),
    PrimaryKeyConstraint("tenant_id"),
    comment="Which hosts a tenant's tools, webhooks and MCP servers may be at.",
)
