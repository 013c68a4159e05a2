"""The ledger keeps how a call came to its result, and which tools fail now.

Expand only: every column may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")
_ZERO = sa.text("0")


def upgrade() -> None:
    """Expand."""
    time = sa.DateTime(timezone=True)
    for column in (
        sa.Column("ran_arguments", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("failed_attempts", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("duplicate_of", sa.Text(), nullable=True),
        sa.Column("cached_from", sa.Text(), nullable=True),
        sa.Column("cached_until", time, nullable=True),
        sa.Column("served_by", sa.Text(), nullable=True),
    ):
        op.add_column("tool_calls", column)
    op.create_index(
        "tool_calls_cached_idx",
        "tool_calls",
        ["tenant_id", "fingerprint"],
        postgresql_where=sa.text("cached_until IS NOT NULL"),
    )
    op.create_table(
        "tool_breakers",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=_ZERO, nullable=False),
        sa.Column("successes", sa.Integer(), server_default=_ZERO, nullable=False),
        sa.Column("window_at", time, server_default=_NOW, nullable=False),
        sa.Column("opens", sa.Integer(), server_default=_ZERO, nullable=False),
        sa.Column("opened_by", sa.Uuid(), nullable=True),
        sa.Column("opened_at", time, nullable=True),
        sa.Column("until", time, nullable=True),
        sa.Column("probe_id", sa.Uuid(), nullable=True),
        sa.Column("probe_until", time, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("updated_at", time, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "tool", name=op.f("tool_breakers_pkey")),
        comment="Tools that failed lately, per tenant; one without a row is well.",
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("tool_breakers")
    op.drop_index("tool_calls_cached_idx", table_name="tool_calls")
    for name in (
        "ran_arguments", "failed_attempts", "duplicate_of", "cached_from", "cached_until",
        "served_by",
    ):  # fmt: skip
        op.drop_column("tool_calls", name)
