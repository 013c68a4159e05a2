"""Retention: ages per tenant, erasures, what runs have lost already, and dropping partitions.

Expand only. Parts of prompts that were stored before name no run: they stay until their tenant is
erased.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from harness_common.store.migrations.row_security import API, SYSTEM, release, secure

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_JSON = postgresql.JSONB(none_as_null=True, astext_type=sa.Text())
_INDEXES: Final[tuple[tuple[str, str, list[Any], str | None], ...]] = (
    ("runs_age_idx", "runs", ["tenant_id", "pruned", "finished_at", "id"],
     "finished_at IS NOT NULL"),
    ("sessions_user_idx", "sessions", ["tenant_id", "user_id", "id"], "user_id IS NOT NULL"),
    ("audit_target_head_idx", "audit",
     ["tenant_id", sa.text("split_part(target, '.'::text, 1)")], None),
    ("memories_run_idx", "memories",
     ["tenant_id", sa.text("(provenance ->> 'run'::text)")], None),
    ("artifacts_sha256_idx", "artifacts", ["sha256"], None),
    ("context_parts_run_idx", "context_parts", ["tenant_id", "run_id"], "run_id IS NOT NULL"),
    ("webhook_deliveries_run_idx", "webhook_deliveries", ["tenant_id", "run_id"], None),
    ("idempotency_keys_run_idx", "idempotency_keys", ["tenant_id", "run_id"], None),
)  # fmt: skip
_PARTS_COMMENT = (
    "System texts and tool definitions, each once; what a run alone knows is that run's."
)
_PARTS_COMMENT_BEFORE = (
    "System texts and tool definitions, each once; the event of a model step names them."
)

_DROP_PARTITION = """
CREATE FUNCTION drop_partition(parent text, starts timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    name text := parent || '_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
    low uuid := (lpad(to_hex((extract(epoch FROM starts) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
    high uuid := (lpad(to_hex((extract(epoch FROM starts + interval '168 hours') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
    lost int := CASE parent WHEN 'events' THEN 1 WHEN 'checkpoints' THEN 2 END;
BEGIN
    IF lost IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'only events and checkpoints have partitions';
    END IF;
    IF starts AT TIME ZONE 'UTC' <> date_trunc('week', starts AT TIME ZONE 'UTC')
       OR starts + interval '8 days' > clock_timestamp() THEN
        RAISE invalid_parameter_value USING MESSAGE = 'only a week that has been over for a day is dropped';
    END IF;
    IF to_regclass(format('public.%I', name)) IS NULL THEN
        RETURN false;
    END IF;
    -- Nobody but prune says of a run that it has lost something, and nobody takes it back.
    IF EXISTS (SELECT 1 FROM tenants t CROSS JOIN LATERAL (
                   SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.id >= low AND r.id < high AND r.pruned & lost = 0 LIMIT 1) AS has) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE public.%I', name);
    RETURN true;
END $$
"""

_STORAGE = """
CREATE FUNCTION storage_of_tenants(percent real, d_events int, d_checkpoints int, d_artifacts int, d_runs int) RETURNS TABLE (
    tenant_id uuid, name text, runs bigint, events bigint, steps bigint, messages bigint, oldest_run_at timestamptz,
    artifacts bigint, artifact_bytes bigint, due_runs bigint, due_events bigint, due_checkpoints bigint, due_artifacts bigint
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    WITH sampled AS (
        SELECT r.tenant_id, count(*) AS n, sum(r.next_seq - 1) AS events, sum(r.step) AS steps, sum(r.messages) AS messages
        FROM runs r TABLESAMPLE SYSTEM (percent) GROUP BY 1
    ), files AS (
        SELECT f.tenant_id, count(*) AS n, sum(f.size_bytes)::bigint AS bytes FROM artifacts f GROUP BY 1
    ), ages AS (
        SELECT t.tenant_id, t.name,
               now() - make_interval(days => coalesce(a.runs_days, d_runs)) AS runs,
               now() - make_interval(days => least(coalesce(a.events_days, d_events), coalesce(a.runs_days, d_runs))) AS events,
               now() - make_interval(days => least(coalesce(a.checkpoints_days, d_checkpoints), coalesce(a.runs_days, d_runs))) AS checkpoints,
               now() - make_interval(days => least(coalesce(a.artifacts_days, d_artifacts), coalesce(a.runs_days, d_runs))) AS artifacts
        FROM tenants t LEFT JOIN retention a ON a.tenant_id = t.tenant_id
    )
    SELECT g.tenant_id, g.name, round(coalesce(s.n, 0) * 100 / percent)::bigint, round(coalesce(s.events, 0) * 100 / percent)::bigint,
           round(coalesce(s.steps, 0) * 100 / percent)::bigint, round(coalesce(s.messages, 0) * 100 / percent)::bigint,
           (SELECT o.created_at FROM runs o WHERE o.tenant_id = g.tenant_id ORDER BY o.id LIMIT 1),
           coalesce(f.n, 0), coalesce(f.bytes, 0),
           (SELECT count(*) FROM (SELECT 1 FROM runs d WHERE d.tenant_id = g.tenant_id AND d.pruned BETWEEN 0 AND 15 AND d.finished_at < g.runs LIMIT 10000) AS x),
           (SELECT count(*) FROM (SELECT 1 FROM runs d WHERE d.tenant_id = g.tenant_id AND d.pruned IN (0, 2, 4, 6) AND d.finished_at < g.events LIMIT 10000) AS x),
           (SELECT count(*) FROM (SELECT 1 FROM runs d WHERE d.tenant_id = g.tenant_id AND d.pruned IN (0, 1, 4, 5) AND d.finished_at < g.checkpoints LIMIT 10000) AS x),
           (SELECT count(*) FROM (SELECT 1 FROM runs d WHERE d.tenant_id = g.tenant_id AND d.pruned IN (0, 1, 2, 3) AND d.finished_at < g.artifacts LIMIT 10000) AS x)
    FROM ages g LEFT JOIN sampled s ON s.tenant_id = g.tenant_id LEFT JOIN files f ON f.tenant_id = g.tenant_id
    WHERE EXISTS (SELECT 1 FROM tenants o WHERE o.operator AND o.tenant_id = nullif(current_setting('app.tenant', true), '')::uuid)
    ORDER BY 3 DESC, 2
$$
"""
_STORAGE_NAME: Final = "storage_of_tenants(real, int, int, int, int)"


def _time(name: str, *, now: bool = False) -> sa.Column[Any]:
    default = sa.text("clock_timestamp()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def upgrade() -> None:
    """Expand."""
    op.add_column(
        "runs", sa.Column("pruned", sa.SmallInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("context_parts", sa.Column("run_id", sa.Uuid(), nullable=True))
    op.create_table_comment("context_parts", _PARTS_COMMENT)
    for name, table, columns, where in _INDEXES:
        op.create_index(
            name, table, columns, postgresql_where=None if where is None else sa.text(where)
        )
    _make_tables()
    op.execute(_DROP_PARTITION)
    op.execute("REVOKE ALL ON FUNCTION drop_partition(text, timestamptz) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION drop_partition(text, timestamptz) TO {SYSTEM}")
    op.execute(_STORAGE)
    op.execute(f"GRANT CREATE ON SCHEMA public TO {SYSTEM}")  # to be given it; for this moment
    op.execute(f"ALTER FUNCTION {_STORAGE_NAME} OWNER TO {SYSTEM}")
    op.execute(f"REVOKE CREATE ON SCHEMA public FROM {SYSTEM}")
    op.execute(f"REVOKE ALL ON FUNCTION {_STORAGE_NAME} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {_STORAGE_NAME} TO {API}, {SYSTEM}")


def _make_tables() -> None:
    op.create_table(
        "retention",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        *(
            sa.Column(f"{kind}_days", sa.Integer(), nullable=True)
            for kind in ("events", "checkpoints", "artifacts", "runs")
        ),
        _time("changed_at", now=True),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("retention_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.tenant_id"], name=op.f("retention_tenant_id_fkey")
        ),
        comment="Days after the end of a run; null: as the settings say.",
    )
    secure("retention", "SELECT, INSERT, UPDATE")
    op.create_table(
        "erasures",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("target_tenant", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("phase", sa.Text(), server_default=sa.text("'stopping'"), nullable=False),
        sa.Column("counts", _JSON, server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        _time("created_at", now=True),
        _time("finished_at"),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("erasures_pkey")),
        comment="tenant_id is who asked; user_id is forgotten when it is done.",
    )
    op.create_index(
        "erasures_open_idx", "erasures", ["id"], postgresql_where=sa.text("finished_at IS NULL")
    )
    secure("erasures", "SELECT, INSERT")
    op.create_table(
        "blob_garbage",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        _time("since", now=True),
        _time("look_at", now=True),
        sa.PrimaryKeyConstraint("tenant_id", "sha256", name=op.f("blob_garbage_pkey")),
        comment="Blobs whose artifacts were deleted; each is deleted once no artifact names it.",
    )
    op.create_index("blob_garbage_look_idx", "blob_garbage", ["look_at"])
    secure("blob_garbage", "SELECT")


def downgrade() -> None:
    """Undo."""
    op.execute(f"DROP FUNCTION {_STORAGE_NAME}")
    op.execute("DROP FUNCTION drop_partition(text, timestamptz)")
    for table in ("blob_garbage", "erasures", "retention"):
        release(table)
        op.drop_table(table)
    for name, table, _, _ in reversed(_INDEXES):
        op.drop_index(name, table)
    op.create_table_comment("context_parts", _PARTS_COMMENT_BEFORE)
    op.drop_column("context_parts", "run_id")
    op.drop_column("runs", "pruned")
