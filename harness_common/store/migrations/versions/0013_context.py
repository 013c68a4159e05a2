"""What prompts are made of, and what a session remembers of its runs.

Expand only: the code before it does not know of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from harness_common.store.migrations.row_security import release, secure

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Expand."""
    op.create_table(
        "context_parts",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant_id", "digest", name=op.f("context_parts_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("context_parts_tenant_id_fkey")
        ),
        comment="System texts and tool definitions, each once; the event of a model step names them.",
    )
    secure("context_parts", "SELECT")
    op.add_column("sessions", sa.Column("memory_summary", sa.Text(), nullable=True))
    # Twice: what is encrypted is longer than what it says.
    op.create_check_constraint(
        "sessions_memory_summary_check",
        "sessions",
        "octet_length(memory_summary) < 2048 OR (memory_summary LIKE 'hsealed1.%' AND octet_length(memory_summary) < 3072)",
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_constraint("sessions_memory_summary_check", "sessions")
    op.drop_column("sessions", "memory_summary")
    release("context_parts")
    op.drop_table("context_parts")
