"""The console saves views of its lists; what ended, and what waits, is found without reading all
runs.

Expand only: the code before it does not know of them. Each index takes in a run when it ends or
begins to wait, not at its steps.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from harness_common.store.migrations.row_security import API, OPERATOR, SYSTEM, release, secure

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_TENANTS = f"""
CREATE FUNCTION platform_tenants() RETURNS TABLE (tenant_id uuid, name text, running int, max_running int, queued int, queued_since timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT t.tenant_id, t.name, s.running, s.max_running, q.queued::int, q.since
    FROM tenants t JOIN tenant_slots s ON s.tenant_id = t.tenant_id
    CROSS JOIN LATERAL (SELECT count(*) AS queued, min(queued_at) AS since FROM (
        (SELECT queued_at FROM runs r WHERE r.tenant_id = t.tenant_id AND status = 'queued' AND held_for IS NULL LIMIT 1000)
        UNION ALL (SELECT queued_at FROM runs r WHERE r.tenant_id = t.tenant_id AND status = 'queued' AND held_for = 'key' LIMIT 1000)
        UNION ALL (SELECT queued_at FROM runs r WHERE r.tenant_id = t.tenant_id AND status = 'queued' AND held_for = 'session' LIMIT 1000)
    ) AS waiting) AS q
    WHERE {OPERATOR}
    ORDER BY q.queued DESC, s.running DESC, t.name LIMIT 50
$$
"""
_FUNCTION = "platform_tenants()"
_WAITING = (
    "status IN ('waiting_approval', 'waiting_input', 'waiting_tool', 'waiting_children', "
    "'delayed', 'paused')"
)


def upgrade() -> None:
    """Expand."""
    op.create_table(
        "console_views",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        sa.Column("page", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("shared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("console_views_pkey")),
        sa.UniqueConstraint(
            "tenant_id",
            "page",
            "created_by",
            "name",
            name=op.f("console_views_tenant_id_page_created_by_name_key"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("console_views_tenant_id_fkey")
        ),
        comment="Filters of a list under a name: one's own, or shared with the tenant.",
    )
    secure("console_views")
    op.create_index(
        "runs_finished_idx",
        "runs",
        ["tenant_id", "finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "runs_ended_idx",
        "runs",
        ["tenant_id", "status", "id"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "runs_waiting_idx", "runs", ["tenant_id", "id"], postgresql_where=sa.text(_WAITING)
    )
    op.execute(_TENANTS)
    # To be given a function, its new owner has to be allowed to make one; for this moment it is.
    op.execute(f"GRANT CREATE ON SCHEMA public TO {SYSTEM}")
    op.execute(f"ALTER FUNCTION {_FUNCTION} OWNER TO {SYSTEM}")
    op.execute(f"REVOKE CREATE ON SCHEMA public FROM {SYSTEM}")
    op.execute(f"REVOKE ALL ON FUNCTION {_FUNCTION} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {_FUNCTION} TO {API}, {SYSTEM}")


def downgrade() -> None:
    """Take it back."""
    op.execute(f"DROP FUNCTION {_FUNCTION}")
    op.drop_index("runs_waiting_idx", "runs")
    op.drop_index("runs_ended_idx", "runs")
    op.drop_index("runs_finished_idx", "runs")
    release("console_views")
    op.drop_table("console_views")
