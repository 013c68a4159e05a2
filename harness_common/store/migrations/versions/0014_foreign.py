"""What other frameworks keep of a run: their checkpoints and the writes of their tasks.

Expand only: the code before it does not know of the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from harness_common.store.migrations.row_security import release, secure

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TABLES = ("foreign_checkpoints", "foreign_writes")


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def upgrade() -> None:
    """Expand."""
    op.create_table(
        "foreign_checkpoints",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        _text("thread"),
        _text("ns"),
        _text("checkpoint_id"),
        _text("parent_id", null=True),
        _text("run_key", null=True),
        _text("kind"),
        sa.Column("snapshot", sa.LargeBinary(), nullable=False),
        sa.Column(
            "payload",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "thread", "ns", "checkpoint_id", name=op.f("foreign_checkpoints_pkey")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("foreign_checkpoints_tenant_id_fkey")
        ),
        comment="`thread` is the run in hex; `snapshot` is compressed and sealed.",
    )
    op.create_index("foreign_checkpoints_run_idx", "foreign_checkpoints", ["tenant_id", "run_key"])
    op.create_table(
        "foreign_writes",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        _text("thread"),
        _text("ns"),
        _text("checkpoint_id"),
        _text("task_id"),
        sa.Column("idx", sa.Integer(), nullable=False),
        _text("task_path"),
        _text("channel"),
        _text("kind"),
        sa.Column("snapshot", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            *("tenant_id", "thread", "ns", "checkpoint_id", "task_id", "idx"),
            name=op.f("foreign_writes_pkey"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("foreign_writes_tenant_id_fkey")
        ),
        comment="What a task of a superstep gave, kept before the superstep is over.",
    )
    for table in _TABLES:
        secure(table, "SELECT")


def downgrade() -> None:
    """Take it back."""
    for table in reversed(_TABLES):
        release(table)
    op.drop_table("foreign_writes")
    op.drop_index("foreign_checkpoints_run_idx", "foreign_checkpoints")
    op.drop_table("foreign_checkpoints")
