"""The metadata that all tables belong to, and the kinds of columns they are made of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    MetaData,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def id_(name: str, *, null: bool = False) -> Column[Any]:
    """Name a row of another table."""
    return Column(name, Uuid, nullable=null)


def new_id(name: str = "id") -> Column[Any]:
    """Make an id of our own: UUIDv7, minted by Postgres."""
    return Column(name, Uuid, nullable=False, server_default=text("uuid7()"))


def when(name: str, *, now: bool = False, null: bool = True) -> Column[Any]:
    """Make a time column, with its zone."""
    return Column(
        name,
        DateTime(timezone=True),
        nullable=null and not now,
        server_default=text("clock_timestamp()") if now else None,
    )


def json_(name: str, default: str | None = "{}") -> Column[Any]:
    """Make a jsonb column; `default` is JSON text, None allows NULL."""
    return Column(
        name,
        JSONB(none_as_null=True),
        nullable=default is None,
        server_default=text(f"'{default}'::jsonb") if default is not None else None,
    )


def text_(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    """Make a text column."""
    return Column(
        name, Text, nullable=null, server_default=text(f"'{default}'") if default else None
    )


def int_(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    """Make an integer column."""
    return Column(
        name,
        Integer,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def flag(name: str) -> Column[Any]:
    """Make a boolean column, false by default."""
    return Column(name, Boolean, nullable=False, server_default=text("false"))


def float_(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    """Make a double column."""
    return Column(
        name,
        Double,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def big(name: str, default: int | None = 0, *, null: bool = False) -> Column[Any]:
    """Make a bigint column."""
    return Column(
        name,
        BigInteger,
        nullable=null,
        server_default=text(str(default)) if default is not None else None,
    )


def rates() -> list[Column[Any]]:
    """Make the columns of limits of a tenant and of the platform (null: none), and of how far ahead
    of now each rate is charged.
    """
    return [
        float_("starts_per_s", None, null=True),
        float_("steps_per_s", None, null=True),
        big("tokens_per_day", None, null=True),
        float_("cost_usd_per_day", None, null=True),
        when("starts_tat"),
        when("steps_tat"),
        when("places_tat"),
    ]
