"""What the console's lists need: the audit trail by actor, target and action; tenants for operators.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from alembic import op

from harness_common.store.migrations.row_security import API, SYSTEM

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_OPERATES: Final = (
    "EXISTS (SELECT 1 FROM tenants o WHERE o.operator AND o.tenant_id = "
    "nullif(current_setting('app.tenant', true), '')::uuid)"
)
_TENANTS: Final = f"""
CREATE FUNCTION platform_tenant_list(only_one uuid, made_before uuid, most int) RETURNS TABLE (
    tenant_id uuid, name text, created_at timestamptz, operator boolean, max_running int, weight float8,
    starts_per_s float8, steps_per_s float8, tokens_per_day bigint, cost_usd_per_day float8,
    running int, slot_seconds float8, queued bigint
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT t.tenant_id, t.name, t.created_at, t.operator, s.max_running, s.weight,
           s.starts_per_s, s.steps_per_s, s.tokens_per_day, s.cost_usd_per_day, s.running,
           s.used_s + CASE WHEN s.turn_sum = 0 THEN 0 ELSE s.running * extract(epoch FROM clock_timestamp())::float8 - s.turn_sum END,
           (SELECT count(*) FROM (
               (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for IS NULL LIMIT 1000)
               UNION ALL (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for = 'key' LIMIT 1000)
               UNION ALL (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for = 'session' LIMIT 1000)
               LIMIT 1000) AS waiting)
    FROM tenants t JOIN tenant_slots s ON s.tenant_id = t.tenant_id
    WHERE {_OPERATES} AND (only_one IS NULL OR t.tenant_id = only_one)
      AND (made_before IS NULL OR t.tenant_id < made_before)
    ORDER BY t.tenant_id DESC LIMIT most
$$
"""
_NAMES: Final = (
    "max_running", "weight", "starts_per_s", "steps_per_s", "tokens_per_day", "cost_usd_per_day"
)  # fmt: skip
_PAID: Final = {"starts_per_s": ("starts_tat",), "steps_per_s": ("steps_tat", "places_tat")}
"""A rate that changes begins anew, as in `store.tenants`."""


def _limit() -> str:
    types = {"max_running": "int", "tokens_per_day": "bigint"}
    sets = [
        f"{n} = CASE WHEN changes ? '{n}' THEN (changes->>'{n}')::{types.get(n, 'float8')} "
        f"ELSE s.{n} END"
        for n in _NAMES
    ]
    for name, paid in _PAID.items():
        sets += [f"{p} = CASE WHEN changes ? '{name}' THEN NULL ELSE s.{p} END" for p in paid]
    return f"""
CREATE FUNCTION platform_tenant_limit(wanted uuid, changes jsonb, shown text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    before jsonb;
    changed jsonb;
BEGIN
    IF NOT {_OPERATES} THEN
        RETURN NULL;
    END IF;
    SELECT to_jsonb(s) INTO before FROM tenant_slots s WHERE s.tenant_id = wanted FOR UPDATE;
    IF before IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE tenant_slots s SET {", ".join(sets)} WHERE s.tenant_id = wanted;
    SELECT coalesce(jsonb_object_agg(c.key, jsonb_build_object('from', before->c.key, 'to', c.value)), '{{}}')
    INTO changed FROM jsonb_each(changes) c;
    INSERT INTO audit (tenant_id, actor, action, target, detail)
    SELECT wanted, 'operator', 'tenant.set_limits', shown, changed
    WHERE wanted <> nullif(current_setting('app.tenant', true), '')::uuid;
    RETURN changed;
END $$
"""


_FUNCTIONS: Final = (
    "platform_tenant_list(uuid, uuid, int)", "platform_tenant_limit(uuid, jsonb, text)"
)  # fmt: skip


def upgrade() -> None:
    """Expand."""
    op.create_index("audit_actor_idx", "audit", ["tenant_id", "actor", "id"])
    op.create_index("audit_target_idx", "audit", ["tenant_id", "target", "id"])
    op.create_index(
        "audit_action_idx",
        "audit",
        ["tenant_id", "action", "id"],
        postgresql_where=sa.text("action <> 'run.create'"),
    )
    op.execute(_TENANTS)
    op.execute(_limit())
    # To be given a function, its new owner has to be allowed to make one; for this moment it is.
    op.execute(f"GRANT CREATE ON SCHEMA public TO {SYSTEM}")
    for name in _FUNCTIONS:
        op.execute(f"ALTER FUNCTION {name} OWNER TO {SYSTEM}")
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {API}, {SYSTEM}")
    op.execute(f"REVOKE CREATE ON SCHEMA public FROM {SYSTEM}")


def downgrade() -> None:
    """Undo."""
    for name in _FUNCTIONS:
        op.execute(f"DROP FUNCTION {name}")
    for index in ("audit_action_idx", "audit_target_idx", "audit_actor_idx"):
        op.drop_index(index, "audit")
