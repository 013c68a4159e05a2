"""Bring the database to the current schema: `python -m harness_common.store.migrate` (also `make
migrate`).

Safe to run from several processes at once: a transaction-level advisory lock lets one at a time
through.
"""

from __future__ import annotations

import sys
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, text

from harness_common.settings import settings
from harness_common.store.db import sqlalchemy_url
from harness_common.store.partitions import ensure_partitions

log = structlog.get_logger()


def alembic_config(connection: Connection) -> Config:
    """Build Alembic's configuration around an open connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def migrate(database_url: str, weeks_ahead: int = 8) -> None:
    """Upgrade to the newest revision and make the partitions of the coming weeks."""
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
    finally:
        engine.dispose()
    log.info("schema.migrated", partitions_made=len(made))


def main() -> int:
    """Run from the command line."""
    config = settings()
    migrate(config.require_database_url(), config.scheduler.partitions_ahead_weeks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
