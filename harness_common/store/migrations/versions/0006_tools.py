"""Tools that tenants declare, the tools that workers have, and the hosts that requests may go to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")
_NONE = sa.text("'{}'::text[]")


def _time(name: str, *, null: bool = False) -> sa.Column[object]:
    default = None if null else _NOW
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=null)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def upgrade() -> None:
    """Expand."""
    array = postgresql.ARRAY(sa.Text())
    op.create_table(
        "tenant_tools",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        _text("name"),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _text("kind"),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _time("removed_at", null=True),
        _time("created_at"),
        _time("changed_at"),
        _text("changed_by"),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("tenant_tools_pkey")),
        sa.UniqueConstraint("tenant_id", "id", name=op.f("tenant_tools_tenant_id_id_key")),
        comment="A tenant's tools and the version of each that counts; a removed one keeps its number.",
    )
    op.create_table(
        "tool_versions",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        _text("name"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("definition", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        _text("digest"),
        _time("created_at"),
        _text("created_by"),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version", name=op.f("tool_versions_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "name"],
            ["tenant_tools.tenant_id", "tenant_tools.name"],
            name=op.f("tool_versions_tenant_id_name_fkey"),
            ondelete="CASCADE",
        ),
        comment="Never changed once written.",
    )
    op.create_table(
        "tool_specs",
        _text("digest"),
        _text("name"),
        sa.Column("spec", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        _time("created_at"),
        sa.PrimaryKeyConstraint("digest", name=op.f("tool_specs_pkey")),
        comment="Specifications of the tools of workers; tenant-less: a worker serves everybody.",
    )
    op.create_table(
        "worker_tools",
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("digests", array, server_default=_NONE, nullable=False),
        sa.PrimaryKeyConstraint("incarnation", name=op.f("worker_tools_pkey")),
        sa.ForeignKeyConstraint(
            ["incarnation"],
            ["workers.incarnation"],
            name=op.f("worker_tools_incarnation_fkey"),
            ondelete="CASCADE",
        ),
        comment="Which tools a worker process has; tenant-less on purpose.",
    )
    op.create_table(
        "egress_rules",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("allow", array, server_default=_NONE, nullable=False),
        sa.Column("deny", array, server_default=_NONE, nullable=False),
        _time("changed_at"),
        _text("changed_by"),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("egress_rules_pkey")),
        comment="Which hosts a tenant's tools, webhooks and MCP servers may be at.",
    )


def downgrade() -> None:
    """Undo."""
    for table in ("egress_rules", "worker_tools", "tool_specs", "tool_versions", "tenant_tools"):
        op.drop_table(table)
