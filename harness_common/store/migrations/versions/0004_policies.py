"""Policies of tool calls, and with each call the decision about it.

Expand only: every column may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_JSON = postgresql.JSONB(none_as_null=True, astext_type=sa.Text())


def upgrade() -> None:
    """Expand."""
    op.create_table(
        "policies",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("agent_name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("rules", _JSON, server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "agent_name", "version", name=op.f("policies_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("policies_tenant_id_fkey")
        ),
        comment="Versions never change; the empty agent name is the whole tenant's.",
    )
    op.add_column("tool_calls", sa.Column("policy", _JSON, nullable=True))


def downgrade() -> None:
    """Undo."""
    op.drop_column("tool_calls", "policy")
    op.drop_table("policies")
