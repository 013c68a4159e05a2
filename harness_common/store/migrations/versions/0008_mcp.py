"""MCP servers of tenants and their tools; what a call that needs a person is made again with.

Expand only: every new column may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")


def _json(name: str, *, null: bool) -> sa.Column[object]:
    return sa.Column(
        name,
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
        server_default=None if null else sa.text("'{}'::jsonb"),
        nullable=null,
    )


def upgrade() -> None:
    """Expand."""
    time = sa.DateTime(timezone=True)
    op.add_column("tool_calls", _json("kept", null=True))
    op.add_column("tool_calls", sa.Column("answer", sa.Text(), nullable=True))
    op.create_table(
        "mcp_servers",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _json("target", null=False),
        _json("effects", null=False),
        sa.Column("timeout_s", sa.Double(), nullable=True),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("seen_hash", sa.Text(), nullable=True),
        sa.Column("listed_at", time, nullable=True),
        sa.Column("check_asked", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("check_done", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("check_until", time, nullable=True),
        _json("checked", null=True),
        sa.Column("created_at", time, server_default=_NOW, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", time, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("mcp_servers_pkey")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("mcp_servers_tenant_id_name_key")),
    )
    op.create_table(
        "mcp_tools",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("server_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("exposed", sa.Text(), nullable=False),
        _json("accepted", null=True),
        sa.Column("accepted_hash", sa.Text(), nullable=True),
        sa.Column("accepted_by", sa.Text(), nullable=True),
        sa.Column("accepted_at", time, nullable=True),
        _json("seen", null=True),
        sa.Column("seen_hash", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("seen_at", time, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "server_id", "name", name=op.f("mcp_tools_pkey")),
        sa.UniqueConstraint("tenant_id", "exposed", name=op.f("mcp_tools_tenant_id_exposed_key")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "server_id"],
            ["mcp_servers.tenant_id", "mcp_servers.id"],
            name=op.f("mcp_tools_tenant_id_server_id_fkey"),
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("mcp_tools")
    op.drop_table("mcp_servers")
    op.drop_column("tool_calls", "answer")
    op.drop_column("tool_calls", "kept")
