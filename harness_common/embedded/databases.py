"""Databases made, cloned and dropped: for the embedded Postgres and for one per test worker."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


def _execute(url: str, statement: str, *names: str) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as conn:
        query = sql.SQL(cast("Any", statement)).format(*map(sql.Identifier, names))
        conn.execute(query)


def database_url(url: str, name: str) -> str:
    """Return `url` with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def create_database(url: str, name: str) -> str:
    """Create an empty database and return its URL."""
    _execute(url, "CREATE DATABASE {}", name)
    return database_url(url, name)


def clone_database(admin_url: str, template: str, name: str) -> str:
    """Create a database as a copy of `template`, which nobody may have open; return its URL."""
    _execute(admin_url, "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY", name, template)
    return database_url(admin_url, name)


def drop_database(admin_url: str, name: str) -> None:
    """Drop a database, ending its connections; does nothing when it is gone."""
    _execute(admin_url, "DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
