"""Bring the database to the current schema: `python -m harness_common.store.migrate` (also `make
migrate`).

Safe to run from several processes at once: a transaction-level advisory lock lets one at a time
through.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import structlog
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import Connection, create_engine, text

from harness_common.logins import ROLES, derive, login_of, user_and_password
from harness_common.settings import settings
from harness_common.store.db import sqlalchemy_url
from harness_common.store.partitions import ensure_partitions
from harness_common.telemetry.logs import configure_logging

log = structlog.get_logger()


def alembic_config(connection: Connection) -> Config:
    """Build Alembic's configuration around an open connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def migrate(
    database_url: str, weeks_ahead: int = 8, *, logins: Sequence[str] | None = None
) -> None:
    """Upgrade to the newest revision, make the partitions of the coming weeks and set the passwords
    of `logins`, the URLs of the API and the system; None derives them from the owner's.
    """
    if logins is None:
        logins = [derive(database_url, login) for login in ROLES]
    engine = create_engine(sqlalchemy_url(database_url))
    try:
        with engine.begin() as guard:
            guard.execute(text("SELECT pg_advisory_xact_lock(hashtext('harness.migrate'))"))
            with engine.connect() as connection:
                connection.execute(text("SET lock_timeout = '5s'"))
                connection.commit()
                command.upgrade(alembic_config(connection), "head")
                connection.commit()
                made = ensure_partitions(connection, weeks_ahead)
                connection.commit()
                driver = connection.connection.driver_connection
                assert isinstance(driver, psycopg.Connection)
                for url in logins:
                    set_login(driver, url)
                    driver.commit()
    finally:
        engine.dispose()
    log.info("schema.migrated", partitions_made=len(made))


def set_login(conn: psycopg.Connection, database_url: str) -> None:
    """Let the user of a URL log in with its password: one of the two roles, or a new member of one.

    The server is sent a verifier, so that no log of its statements holds the password.
    """
    user, password = user_and_password(database_url)
    role = ROLES[login_of(database_url)]
    name = sql.Identifier(user)
    known = "SELECT 1 FROM pg_roles WHERE rolname = %s"
    if conn.execute(known, (user,)).fetchone() is None:
        make = sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}")
        conn.execute(make.format(name, sql.Identifier(role)))
    if password is None:
        return
    verifier = conn.pgconn.encrypt_password(
        password.encode(), user.encode(), b"scram-sha-256"
    ).decode()
    conn.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(verifier)))
    log.info("login.password_set", user=user, role=role)


def main() -> int:
    """Run from the command line."""
    config = settings()
    configure_logging(config.log)
    migrate(
        config.database_login("owner"),
        config.scheduler.partitions_ahead_weeks,
        logins=config.database_logins_to_set(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
