"""Facts have an owner, a kind, a trust, and what they are found by; skills have versions;
workers say which plugins they have.

Expand only: nothing has written the table before. Vectors are stored as arrays, and compared by the
extension `vector` where the server has it: without it, or without the right to install it, the
schema is the same and memories are found by their words.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from harness_common.store.migrations.row_security import release, secure

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_EXTENSION = """
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector') THEN
        CREATE EXTENSION IF NOT EXISTS vector;
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'the extension vector was not installed: %', SQLERRM;
END $$
"""
_JSON = postgresql.JSONB(none_as_null=True, astext_type=sa.Text())
_COMMENT = "user_id: null is shared, '' nobody's. What is encrypted has no words."


def _new() -> list[sa.Column[Any]]:
    return [
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), server_default=sa.text("'fact'"), nullable=False),
        sa.Column("trust", sa.Text(), server_default=sa.text("'trusted'"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("words", postgresql.TSVECTOR(), nullable=True),
        sa.Column("embedding", postgresql.ARRAY(sa.REAL()), nullable=True),
        sa.Column("embedded_by", sa.Text(), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=True),
    ]


def upgrade() -> None:
    """Expand."""
    op.execute(_EXTENSION)
    for column in _new():
        op.add_column("memories", column)
    op.create_index(
        "memories_fact_idx",
        "memories",
        ["tenant_id", "scope", "user_id", "digest"],
        unique=True,
        postgresql_nulls_not_distinct=True,
    )
    op.create_index(
        "memories_expiry_idx",
        "memories",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_table_comment("memories", _COMMENT)
    _make_skills()
    op.add_column(
        "workers",
        sa.Column("plugins", _JSON, server_default=sa.text("'[]'::jsonb"), nullable=False),
    )


def _make_skills() -> None:
    op.create_table(
        "skills",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        sa.Column("spec", _JSON, server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version", name=op.f("skills_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("skills_tenant_id_fkey")
        ),
        comment="Versions never change; runs pin them.",
    )
    secure("skills", "SELECT, INSERT")


def downgrade() -> None:
    """Undo; the extension stays, others may use it."""
    op.drop_column("workers", "plugins")
    release("skills")
    op.drop_table("skills")
    op.drop_table_comment("memories")
    op.drop_index("memories_expiry_idx", "memories")
    op.drop_index("memories_fact_idx", "memories")
    for column in reversed(_new()):
        op.drop_column("memories", column.name)
