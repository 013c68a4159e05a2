"""Repairs of answers are counted by kind, for statistics by month.

Expand only: the code before it does not know of the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from harness_common.store.migrations.row_security import release, secure

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Expand."""
    op.create_table(
        "repairs",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "kinds", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant_id", "run_id", "step", name="repairs_pkey"),
        comment="Repairs of one answer by kind: numbers only, what was said is in its event.",
    )
    op.create_index("repairs_at_idx", "repairs", ["tenant_id", "at"])
    secure("repairs", "SELECT")


def downgrade() -> None:
    """Take it back."""
    release("repairs")
    op.drop_table("repairs")
