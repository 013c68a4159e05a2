"""Secrets, wrapped data keys, and which tenants want their bodies encrypted.

Expand only: every new column may be null, so that the code before it goes on working.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Expand."""
    time = sa.DateTime(timezone=True)
    op.add_column("tenants", sa.Column("encrypted_since", time, nullable=True))
    op.add_column("artifacts", sa.Column("sealed", sa.Text(), nullable=True))
    op.create_table(
        "tenant_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kek_id", sa.Text(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", time, server_default=_NOW, nullable=False),
        sa.Column("rewrapped_at", time, nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "version", name=op.f("tenant_keys_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("tenant_keys_tenant_id_fkey")
        ),
        comment="Data keys, wrapped by a key-encryption key that is not in the database.",
    )
    op.create_index("tenant_keys_kek_idx", "tenant_keys", ["kek_id"])
    op.create_table(
        "secrets",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", time, server_default=_NOW, nullable=False),
        sa.Column("set_at", time, server_default=_NOW, nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("last_used_at", time, nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("secrets_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("secrets_tenant_id_fkey")
        ),
        comment="Values are encrypted under the tenant's data key, bound to name and version.",
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("secrets")
    op.drop_index("tenant_keys_kek_idx", table_name="tenant_keys")
    op.drop_table("tenant_keys")
    op.drop_column("artifacts", "sealed")
    op.drop_column("tenants", "encrypted_since")
