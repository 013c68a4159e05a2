"""Row-level security for migrations: `secure` a table that a migration makes.

A table with `tenant_id` shows the API the rows of `app.tenant` and no others; workers and the
scheduler (`harness_system`) see all of it. A migration that adds a table calls one of these; a test
reads the catalogue and fails when one was forgotten.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import text

from harness_common.logins import ROLES

API: Final = ROLES["api"]
SYSTEM: Final = ROLES["system"]
TENANT: Final = "tenant_id = nullif(current_setting('app.tenant', true), '')::uuid"
"""What a row must satisfy. Without the setting, or with an empty one, nothing does."""
OPERATOR: Final = (
    "EXISTS (SELECT 1 FROM tenants WHERE operator AND tenants."
    "tenant_id = nullif(current_setting('app.tenant', true), '')::uuid)"
)


def secure(table: str, api: str = "SELECT, INSERT, UPDATE, DELETE") -> None:
    """Bind a table with `tenant_id`, and say what the API may do with a tenant's rows."""
    _force(table)
    _policy(table, "of_tenant", API, f"USING ({TENANT}) WITH CHECK ({TENANT})")
    _policy(table, "of_system", SYSTEM, "USING (true) WITH CHECK (true)")
    _grant(table, api)


def secure_shared(table: str, api: str = "") -> None:
    """Give rights on a table of no tenant: all to the system, to the API what is said."""
    _grant(table, api)


def force_only(table: str) -> None:
    """Close a partition: its rows are reached through the parent, whose policies hold."""
    _force(table)
    op.execute(f"REVOKE ALL ON {table} FROM PUBLIC, {API}, {SYSTEM}")


def operators_only(table: str) -> None:
    """Let the API read a shared table, and change it for a tenant that runs the platform."""
    _force(table)
    _policy(table, "read", API, "USING (true)", "SELECT")
    _policy(table, "add", API, f"WITH CHECK ({OPERATOR})", "INSERT")
    _policy(table, "change", API, f"USING ({OPERATOR}) WITH CHECK ({OPERATOR})", "UPDATE")
    _policy(table, "of_system", SYSTEM, "USING (true) WITH CHECK (true)")
    _grant(table, "SELECT, INSERT, UPDATE")


def operators_see_all(table: str) -> None:
    """Let the API read and change the rows of every tenant for one that runs the platform."""
    _policy(table, "operator_reads", API, f"USING ({OPERATOR})", "SELECT")
    rule = f"USING ({OPERATOR}) WITH CHECK ({OPERATOR})"
    _policy(table, "operator_changes", API, rule, "UPDATE")


def release(table: str) -> None:
    """Undo what the others did to a table."""
    connection = op.get_bind()
    query = text("SELECT quote_ident(polname) FROM pg_policy WHERE polrelid = to_regclass(:t)")
    for name in connection.execute(query, {"t": table}).scalars().all():
        op.execute(f"DROP POLICY {name} ON {table}")
    op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY")
    op.execute(f"REVOKE ALL ON {table} FROM {API}, {SYSTEM}")


def _force(table: str) -> None:
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")


def _policy(table: str, name: str, role: str, rule: str, command: str = "ALL") -> None:
    op.execute(f"DROP POLICY IF EXISTS {name} ON {table}")
    op.execute(f"CREATE POLICY {name} ON {table} FOR {command} TO {role} {rule}")


def _grant(table: str, api: str) -> None:
    op.execute(f"REVOKE ALL ON {table} FROM PUBLIC, {API}, {SYSTEM}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {SYSTEM}")
    if api:
        op.execute(f"GRANT {api} ON {table} TO {API}")
