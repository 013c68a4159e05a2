"""Approvals: what exactly a person is shown, who may answer, what became of the answer.

Expand only: every column has a default or may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_EMPTY = sa.text("''")


def upgrade() -> None:
    """Expand."""
    time = sa.DateTime(timezone=True)
    for column in (
        sa.Column("tool", sa.Text(), server_default=_EMPTY, nullable=False),
        sa.Column("tool_version", sa.Text(), server_default=_EMPTY, nullable=False),
        sa.Column("policy_version", sa.Text(), server_default=_EMPTY, nullable=False),
        sa.Column("effect", sa.Text(), nullable=True),
        sa.Column("arguments", postgresql.JSON(), nullable=True),
        sa.Column("input_schema", postgresql.JSON(), nullable=True),
        sa.Column("original_arguments", postgresql.JSON(), nullable=True),
        sa.Column("original_digest", sa.Text(), nullable=True),
        sa.Column("edited_by", sa.Text(), nullable=True),
        sa.Column(
            "approver_roles",
            postgresql.ARRAY(sa.Text()),
            server_default=sa.text("'{}'::text[]"),
            nullable=False,
        ),
        sa.Column("four_eyes", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("started_by", sa.Text(), nullable=True),
        sa.Column("decided_role", sa.Text(), nullable=True),
        sa.Column("used_at", time, nullable=True),
    ):
        op.add_column("approvals", column)
    op.create_index(
        "approvals_open_idx",
        "approvals",
        ["tenant_id", "run_id", "step", "idx"],
        unique=True,
        postgresql_where=sa.text("status IN ('pending', 'approved')"),
    )
    op.create_index(
        "approvals_pending_idx",
        "approvals",
        ["tenant_id", "id"],
        postgresql_where=sa.text("status = 'pending'"),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_index("approvals_pending_idx", "approvals")
    op.drop_index("approvals_open_idx", "approvals")
    for name in (
        "tool", "tool_version", "policy_version", "effect", "arguments", "input_schema",
        "original_arguments", "original_digest", "edited_by", "approver_roles", "four_eyes",
        "started_by", "decided_role", "used_at",
    ):  # fmt: skip
        op.drop_column("approvals", name)
