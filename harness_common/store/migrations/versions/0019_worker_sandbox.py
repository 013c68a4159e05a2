"""A worker says which sandbox it has.

Expand only: the code before it does not know of the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Expand."""
    op.add_column("workers", sa.Column("sandbox", JSONB(), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("workers", "sandbox")
