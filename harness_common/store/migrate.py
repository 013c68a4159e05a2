"""Bring the database to the current schema: `python -m harness_common.store.migrate` (also `make
migrate`), or the part of the way that an upgrade without a pause takes before (`--phase pre`) and
after (`--phase post`) the processes are replaced; see `harness_common.revisions`.

Safe to run from several processes at once: a transaction-level advisory lock lets one at a time
through.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
import structlog
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError

from harness_common import VERSION
from harness_common.core.errors import Conflict
from harness_common.logins import ROLES, derive, login_of, user_and_password
from harness_common.revisions import VERSIONS, Phase, floor_comment, known, target
from harness_common.settings import settings
from harness_common.store.db import sqlalchemy_url
from harness_common.store.first_statistics import write_first_statistics
from harness_common.store.partitions import ensure_partitions
from harness_common.telemetry.logs import configure_logging

log = structlog.get_logger()

_LOCK_TRIES: Final = 10
_OLD_WORKERS: Final = text(
    "SELECT name || '@' || host || ' (' || version || ')' FROM workers "
    "WHERE died_at IS NULL AND seen_at > clock_timestamp() - interval '1 minute' "
    "AND version IS DISTINCT FROM :version ORDER BY 1 LIMIT 5"
)


def alembic_config(connection: Connection, versions: Path = VERSIONS) -> Config:
    """Build Alembic's configuration around an open connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("version_locations", str(versions))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def migrate(
    database_url: str,
    weeks_ahead: int = 8,
    *,
    logins: Sequence[str] | None = None,
    phase: Phase = "all",
    versions: Path = VERSIONS,
) -> None:
    """Upgrade to the newest revision of the phase, make the partitions of the coming weeks and set
    the passwords of `logins`, the URLs of the API and the system; None derives them from the
    owner's. Raises `Conflict` when the phase cannot be done now.
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
                _upgrade(connection, phase, versions)
                made = ensure_partitions(connection, weeks_ahead)
                connection.commit()
                write_first_statistics(connection)
                connection.commit()
                driver = connection.connection.driver_connection
                assert isinstance(driver, psycopg.Connection)
                for url in logins:
                    set_login(driver, url)
                    driver.commit()
    finally:
        engine.dispose()
    log.info("schema.migrated", phase=phase, partitions_made=len(made))


def _upgrade(connection: Connection, phase: Phase, versions: Path) -> None:
    ours = known(versions)
    found = _revision(connection)
    to = target(found, phase, ours)
    if to not in {one.id for one in ours}:
        log.warning("schema.newer", revision=to)
        return
    if phase == "post" and to != found:
        _refuse_old_workers(connection)
    for attempt in range(1, _LOCK_TRIES + 1):
        try:
            command.upgrade(alembic_config(connection, versions), to)
            break
        except OperationalError as error:
            # A long statement holds the table: let those that queue behind us pass, then again.
            locked = isinstance(error.orig, psycopg.errors.LockNotAvailable)
            if not locked or attempt == _LOCK_TRIES:
                raise
            connection.rollback()
            log.warning("schema.locked", attempt=attempt)
            time.sleep(1.0)
    if (says := floor_comment(to, ours)) is not None:
        connection.execute(text(f"COMMENT ON TABLE alembic_version IS '{says}'"))
    connection.commit()


def _revision(connection: Connection) -> str | None:
    exists = connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    query = text("SELECT version_num FROM alembic_version")
    found: str | None = connection.scalar(query) if exists else None
    connection.commit()
    return found


def _refuse_old_workers(connection: Connection) -> None:
    """Refuse to take away what a worker of another version may still need."""
    old = list(connection.scalars(_OLD_WORKERS, {"version": VERSION}))
    connection.commit()
    if old:
        raise Conflict(
            f"workers of another version than {VERSION} are alive: {', '.join(old)}. Replace them "
            "(and the APIs and schedulers of that version), then run this again.",
            code="OLD_WORKERS_ALIVE",
        )


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
    parser = argparse.ArgumentParser(prog="python -m harness_common.store.migrate")
    parser.add_argument("--phase", choices=("pre", "post", "all"), default="all")
    phase: Phase = parser.parse_args().phase
    config = settings()
    configure_logging(config.log)
    try:
        migrate(
            config.database_login("owner"),
            config.scheduler.partitions_ahead_weeks,
            logins=config.database_logins_to_set(),
            phase=phase,
        )
    except Conflict as error:
        sys.stderr.write(f"error: {error.message} [{error.error_code}]\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
