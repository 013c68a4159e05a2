"""Schedules: what each one has decided, whether it is paused, and what became of its firings.

Expand only: every column has a default or may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Expand."""
    time = sa.DateTime(timezone=True)
    for column in (
        sa.Column("last_at", time, server_default=_NOW, nullable=False),
        sa.Column("paused_at", time, nullable=True),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("firings", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("waiting", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "open_runs",
            postgresql.ARRAY(sa.Uuid()),
            server_default=sa.text("'{}'::uuid[]"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("updated_at", time, server_default=_NOW, nullable=False),
    ):
        op.add_column("schedules", column)
    op.create_index(
        "schedules_due_idx",
        "schedules",
        ["next_at"],
        postgresql_where=sa.text("next_at IS NOT NULL"),
    )
    op.create_index(
        "schedules_waiting_idx",
        "schedules",
        ["tenant_id", "id"],
        postgresql_where=sa.text("waiting > 0"),
    )
    op.create_table(
        "schedule_firings",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("schedule_id", sa.Uuid(), nullable=False),
        sa.Column("at", time, nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("created_at", time, server_default=_NOW, nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id", "schedule_id", "at", name=op.f("schedule_firings_pkey")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "schedule_id"],
            ["schedules.tenant_id", "schedules.id"],
            name=op.f("schedule_firings_tenant_id_schedule_id_fkey"),
            ondelete="CASCADE",
        ),
        comment="What became of each time of a schedule: its key makes one firing one run.",
    )
    op.create_index("schedule_firings_created_at_idx", "schedule_firings", ["created_at"])
    op.create_index(
        "schedule_firings_waiting_idx",
        "schedule_firings",
        ["tenant_id", "schedule_id", "at"],
        postgresql_where=sa.text("outcome = 'waiting'"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("schedule_firings")
    for name in ("waiting", "due"):
        op.drop_index(f"schedules_{name}_idx", table_name="schedules")
    for name in (
        "last_at", "paused_at", "pause_reason", "firings", "waiting", "open_runs", "created_by",
        "updated_at",
    ):  # fmt: skip
        op.drop_column("schedules", name)
