"""Row-level security: two roles, and policies on every table that there is.

What a role may do is said here once for the tables of the migrations before; a later migration
says it for its own by `row_security.secure`.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import text

from harness_common.store.migrations.row_security import (
    API,
    SYSTEM,
    force_only,
    operators_only,
    operators_see_all,
    release,
    secure,
    secure_shared,
)

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_API_RIGHTS: Final = {
    "tenants": "SELECT",
    "tenant_slots": "SELECT, UPDATE",
    "tenant_days": "SELECT, UPDATE",
    "usage": "SELECT",
    "api_keys": "SELECT, INSERT, UPDATE",
    "agents": "SELECT, INSERT, UPDATE",
    "sessions": "SELECT, INSERT, UPDATE",
    "runs": "SELECT, INSERT, UPDATE",
    "inputs": "SELECT, INSERT",
    "checkpoints": "SELECT, INSERT",
    "messages": "SELECT, INSERT",
    "events": "SELECT, INSERT",
    "tool_calls": "SELECT, INSERT, UPDATE",
    "audit": "SELECT, INSERT",
    "policies": "SELECT, INSERT",
    "tool_versions": "SELECT, INSERT",
    "tenant_tools": "SELECT, INSERT, UPDATE",
    "approvals": "SELECT, INSERT, UPDATE",
    "tenant_keys": "SELECT, INSERT, UPDATE",
    "mcp_tools": "SELECT, UPDATE, DELETE",
    "tool_breakers": "SELECT, DELETE",
    "webhook_deliveries": "SELECT, INSERT, UPDATE",
}
"""What is narrower than everything: nothing that was recorded is changed or deleted by the API."""
_SHARED: Final = dict.fromkeys(
    ("workers", "worker_tools", "tool_specs", "throttles", "alembic_version"), "SELECT"
)
"""Tables of no tenant of which the API reads something; the others it does not see."""

_ROLE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's migration was faster
END $$
"""
_MEMBER = f"""
DO $$ BEGIN
    -- An owner that is bound as well could not change a row in a later migration.
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AND NOT pg_has_role(current_user, '{SYSTEM}', 'USAGE') THEN
        EXECUTE format('GRANT {SYSTEM} TO %I', current_user);
    END IF;
END $$
"""
_CLOSE = """
DO $$ BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$
"""

_FIND_KEY = """
CREATE FUNCTION find_api_key(wanted text) RETURNS TABLE (
    tenant_id uuid, id uuid, name text, public_id text, secret_hash bytea, role text, scopes text[],
    operator boolean, revoked boolean, expires_in_s float8, touch_due boolean
) LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT k.tenant_id, k.id, k.name, k.public_id, k.secret_hash, k.role, k.scopes, t.operator,
           k.revoked_at IS NOT NULL, extract(epoch FROM k.expires_at - clock_timestamp())::float8,
           k.last_used_at IS NULL OR k.last_used_at < clock_timestamp() - interval '1 minute'
    FROM api_keys k JOIN tenants t ON t.tenant_id = k.tenant_id WHERE k.public_id = wanted
$$
"""
_RUNNING = """
CREATE FUNCTION platform_running() RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT coalesce(sum(running), 0)::int FROM tenant_slots
$$
"""
_QUEUED = """
CREATE FUNCTION platform_queued() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT count(*) FROM (
        (SELECT 1 FROM runs WHERE status = 'queued' AND held_for IS NULL LIMIT 10000)
        UNION ALL (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'key' LIMIT 10000)
        UNION ALL (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'session' LIMIT 10000)
        LIMIT 10000) AS waiting
$$
"""
_PARTITION = """
CREATE FUNCTION make_partition(parent text, starts timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    name text := parent || '_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
    low text := lpad(to_hex((extract(epoch FROM starts) * 1000)::bigint), 12, '0') || repeat('0', 20);
    high text := lpad(to_hex((extract(epoch FROM starts + interval '168 hours') * 1000)::bigint), 12, '0') || repeat('0', 20);
BEGIN
    IF parent NOT IN ('events', 'checkpoints') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'only events and checkpoints have partitions';
    END IF;
    IF starts AT TIME ZONE 'UTC' <> date_trunc('week', starts AT TIME ZONE 'UTC')
       OR starts NOT BETWEEN clock_timestamp() - interval '5 weeks' AND clock_timestamp() + interval '2 years' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a partition starts on a Monday, 00:00 UTC, of about now';
    END IF;
    IF to_regclass(format('public.%I', name)) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE IF NOT EXISTS public.%I PARTITION OF public.%I FOR VALUES FROM (%L) TO (%L)', name, parent, low, high);
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('REVOKE ALL ON public.%I FROM PUBLIC', name);
    RETURN true;
END $$
"""
_FUNCTIONS: Final = {
    "uuid7()": (API, SYSTEM),
    "find_api_key(text)": (API, SYSTEM),
    "platform_running()": (API, SYSTEM),
    "platform_queued()": (API, SYSTEM),
    "make_partition(text, timestamptz)": (SYSTEM,),
}
_AS_SYSTEM: Final = ("find_api_key(text)", "platform_running()", "platform_queued()")
"""They see every tenant and nothing else: they run as the system role, not as the owner."""


def upgrade() -> None:
    """Expand: the code before goes on working as the owner if that is a superuser."""
    for role in (API, SYSTEM):
        op.execute(_ROLE.format(role=role))
    op.execute(_MEMBER)
    op.execute(_CLOSE)
    op.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    op.execute(f"GRANT USAGE ON SCHEMA public TO {API}, {SYSTEM}")
    _functions()
    for table, parts in _tables(with_tenant=True):
        if parts == "partition":
            force_only(table)
        else:
            secure(table, _API_RIGHTS.get(table, "SELECT, INSERT, UPDATE, DELETE"))
    op.execute(f"GRANT UPDATE (encrypted_since) ON tenants TO {API}")
    operators_see_all("tenant_keys")
    for table, _ in _tables(with_tenant=False):
        if table == "platform":
            operators_only(table)
        else:
            secure_shared(table, _SHARED.get(table, ""))


def _functions() -> None:
    for body in (_FIND_KEY, _RUNNING, _QUEUED, _PARTITION):
        op.execute(body)
    # To be given a function, its new owner has to be allowed to make one; for this moment it is.
    op.execute(f"GRANT CREATE ON SCHEMA public TO {SYSTEM}")
    for name in _AS_SYSTEM:
        op.execute(f"ALTER FUNCTION {name} OWNER TO {SYSTEM}")
    op.execute(f"REVOKE CREATE ON SCHEMA public FROM {SYSTEM}")
    for name, roles in _FUNCTIONS.items():
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO {', '.join(roles)}")


def _tables(*, with_tenant: bool) -> list[tuple[str, str]]:
    """Return tables, and `partition` for those that belong to another."""
    query = text(
        "SELECT quote_ident(c.relname), CASE WHEN c.relispartition THEN 'partition' ELSE '' END "
        "FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') "
        "AND :wanted = EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid "
        "AND a.attname = 'tenant_id' AND NOT a.attisdropped) ORDER BY 1"
    )
    found = op.get_bind().execute(query, {"wanted": with_tenant})
    return [(name, kind) for name, kind in found]


def downgrade() -> None:
    """Undo. The roles stay: they may belong to other databases too."""
    for wanted in (True, False):
        for table, _ in _tables(with_tenant=wanted):
            release(table)
    for name, roles in _FUNCTIONS.items():
        if name == "uuid7()":
            op.execute(f"REVOKE ALL ON FUNCTION {name} FROM {', '.join(roles)}")
            op.execute(f"GRANT EXECUTE ON FUNCTION {name} TO PUBLIC")
        else:
            op.execute(f"DROP FUNCTION {name}")
    op.execute(f"REVOKE ALL ON SCHEMA public FROM {API}, {SYSTEM}")
