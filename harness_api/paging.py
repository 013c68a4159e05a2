"""Keyset paging: an opaque cursor is the last id (or number) of the page before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Query

from harness_common.core.errors import Invalid
from harness_common.store.db import Row

V = TypeVar("V")

Limit = Annotated[int, Query(ge=1, le=200, description="Entries a page.")]
LongLimit = Annotated[int, Query(ge=1, le=1000, description="Entries a page.")]
Cursor = Annotated[
    str | None, Query(max_length=200, description="`next_cursor` of the page before.")
]


def encode_cursor(*parts: UUID | int) -> str:
    """Write a place in a list."""
    text = ":".join(p.hex if isinstance(p, UUID) else str(p) for p in parts)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _parts(cursor: str) -> list[str]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii").split(":")
    except (binascii.Error, ValueError):
        raise _bad() from None


def id_cursor(cursor: str | None) -> UUID | None:
    """Read a cursor that is an id; raises `Invalid`."""
    if cursor is None:
        return None
    parts = _parts(cursor)
    try:
        if len(parts) != 1 or len(parts[0]) != 32:
            raise _bad()
        return UUID(hex=parts[0])
    except ValueError:
        raise _bad() from None


def number_cursor(cursor: str | None, count: int = 1) -> tuple[int, ...] | None:
    """Read a cursor that is `count` numbers; raises `Invalid`."""
    if cursor is None:
        return None
    parts = _parts(cursor)
    if len(parts) != count or not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
        raise _bad()
    return tuple(int(p) for p in parts)


def page(
    rows: Sequence[Row], limit: int, show: Callable[[Row], V], *by: str
) -> tuple[list[V], str | None]:
    """Cut `limit + 1` rows to a page and its next cursor, made of the columns `by` of its last
    row.
    """
    shown = rows[:limit]
    more = len(rows) > limit
    return [show(r) for r in shown], encode_cursor(*(shown[-1][c] for c in by)) if more else None


def _bad() -> Invalid:
    return Invalid("the cursor is not one of ours; use `next_cursor` of a page", field="cursor")
