"""Keyset paging: a cursor is the last id (or number) of the page before; clients pass it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Query

from harness_common.store.connection import Row

V = TypeVar("V")

ID_PATTERN = "^[0-9a-f]{32}$"
_ABOUT = "`next_cursor` of the page before."
Limit = Annotated[int, Query(ge=1, le=200, description="Entries a page.")]
LongLimit = Annotated[int, Query(ge=1, le=1000, description="Entries a page.")]
IdCursor = Annotated[str | None, Query(pattern=ID_PATTERN, description=_ABOUT)]
NumberCursor = Annotated[str | None, Query(pattern="^[0-9]{1,9}$", description=_ABOUT)]
CallCursor = Annotated[str | None, Query(pattern="^[0-9]{1,9}[.][0-9]{1,9}$", description=_ABOUT)]


def id_of(cursor: str | None) -> UUID | None:
    """Read a cursor that is an id."""
    return UUID(hex=cursor) if cursor is not None else None


def page(
    rows: Sequence[Row], limit: int, show: Callable[[Row], V], *by: str
) -> tuple[list[V], str | None]:
    """Cut `limit + 1` rows to a page and its next cursor, from the columns `by` of the last row."""
    shown = rows[:limit]
    if len(rows) <= limit:
        return [show(r) for r in shown], None
    parts = (shown[-1][column] for column in by)
    cursor = ".".join(p.hex if isinstance(p, UUID) else str(p) for p in parts)
    return [show(r) for r in shown], cursor
