"""Which role each kind of process has in Postgres, and whether row-level security binds it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from harness_api.cli.finding import Finding, State
from harness_common.logins import Login
from harness_common.settings import Settings

if TYPE_CHECKING:
    import psycopg

_TIMEOUT_S: Final = 3
_SEE: Final = "See docs/security.md."
_SESSIONS: Final = """
SELECT DISTINCT usename::text FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'harness-api'
"""


def check(config: Settings) -> Iterator[Finding]:
    """Log in as each process would and say what that login is; then look at those that run."""
    if config.database_url is None and config.system_database_url is None:
        return
    yield from _login(config, "api")
    yield from _login(config, "system")


def _login(config: Settings, login: Login) -> Iterator[Finding]:
    import psycopg

    name = f"{login} login"
    try:
        url = config.database_login(login)
    except SystemExit as error:  # a machine needs no more than what runs on it
        yield Finding(name, State.WARN, "not known here", str(error))
        return
    try:
        with psycopg.connect(url, connect_timeout=_TIMEOUT_S, autocommit=True) as conn:
            yield _api(conn, name) if login == "api" else _system(conn, name)
            if login == "system":
                yield from _running(conn)
    except psycopg.OperationalError as error:
        text = str(error).strip().splitlines()[0][:200]
        advice = "`harness migrate` sets the passwords of both logins. " + _SEE
        yield Finding(name, State.FAIL, text, advice)
    except psycopg.Error as error:
        text = str(error).strip().splitlines()[0][:200]
        yield Finding(name, State.FAIL, text, "Run `harness migrate`.")


def _bound(conn: psycopg.Connection) -> tuple[str, bool]:
    statement = files("harness_common") / "store" / "sql" / "bound.sql"
    ((role, bound),) = conn.execute(statement.read_bytes()).fetchall()
    return role, bound


def _api(conn: psycopg.Connection, name: str) -> Finding:
    role, bound = _bound(conn)
    if bound:
        text = f"{role}: bound by row-level security, one tenant in a transaction"
        return Finding(name, State.OK, text)
    text = f"{role} may see every tenant: a superuser, the owner, or a role of the system"
    return Finding(name, State.FAIL, text, "Give the API the login harness_api. " + _SEE)


def _system(conn: psycopg.Connection, name: str) -> Finding:
    query = (
        "SELECT current_user::text, rolsuper OR rolbypassrls OR EXISTS (SELECT 1 FROM pg_class "
        "WHERE oid = to_regclass('runs') AND pg_has_role(relowner, 'USAGE')) "
        "FROM pg_roles WHERE rolname = current_user"
    )
    ((role, mighty),) = conn.execute(query).fetchall()
    if mighty:
        text = f"{role} is a superuser or owns the tables: more than workers need"
        return Finding(name, State.WARN, text, "Give them the login harness_system. " + _SEE)
    return Finding(name, State.OK, f"{role}: every tenant by policy, no rights over the schema")


def _running(conn: psycopg.Connection) -> Iterator[Finding]:
    """Look at the sessions of API processes; whoever may see every tenant is named."""
    query = (
        f"SELECT s.usename FROM ({_SESSIONS}) s JOIN pg_roles r ON r.rolname = s.usename "  # noqa: S608
        "WHERE r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, to_regrole('harness_system'), "
        "'MEMBER')"
    )
    mighty = [user for (user,) in conn.execute(query.encode())]
    if mighty:
        text = f"a running API is logged in as {', '.join(mighty)}"
        yield Finding("api sessions", State.FAIL, text, "Restart it with the login harness_api.")
