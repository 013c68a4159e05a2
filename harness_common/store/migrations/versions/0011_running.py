"""What runs on each queue is counted by an index of its own.

Expand only: the code before it does not know of the index.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Expand."""
    op.create_index(
        "runs_running_idx", "runs", ["queue"], postgresql_where=sa.text("status = 'running'")
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_index("runs_running_idx", "runs")
