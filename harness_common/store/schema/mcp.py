"""MCP servers that tenants declare, and their tools: what is listed and what was accepted."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table, UniqueConstraint

from harness_common.store.schema.columns import (
    float_,
    id_,
    int_,
    json_,
    metadata,
    new_id,
    text_,
    when,
)

mcp_servers = Table(
    "mcp_servers",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("name"),
    json_("target"),
    json_("effects"),
    float_("timeout_s", None, null=True),
    int_("generation", 1),
    text_("seen_hash", null=True),
    when("listed_at"),
    int_("check_asked"),
    int_("check_done"),
    when("check_until"),
    json_("checked", None),
    when("created_at", now=True),
    text_("created_by"),
    when("updated_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "name"),
)


mcp_tools = Table(
    "mcp_tools",
    metadata,
    id_("tenant_id"),
    id_("server_id"),
    text_("name"),
    text_("exposed"),
    json_("accepted", None),
    text_("accepted_hash", null=True),
    text_("accepted_by", null=True),
    when("accepted_at"),
    json_("seen", None),
    text_("seen_hash", null=True),
    text_("problem", null=True),
    when("seen_at", now=True),
    PrimaryKeyConstraint("tenant_id", "server_id", "name"),
    UniqueConstraint("tenant_id", "exposed"),
    ForeignKeyConstraint(
        ["tenant_id", "server_id"],
        ["mcp_servers.tenant_id", "mcp_servers.id"],
        ondelete="CASCADE",
    ),
)
