"""Tables in memory, made from the same definitions as those of Postgres, with a journal to undo by.

A row is a dict with every column; it is never changed, only replaced, so that whoever holds one
holds what was true then. Every change is written down first: a statement or a transaction that
fails is undone as a whole. Called by the statements of this package only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from random import getrandbits
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from psycopg.errors import NotNullViolation, UniqueViolation
from sqlalchemy.dialects.postgresql import ARRAY

from harness_common.core.message import Json
from harness_common.store import schema
from harness_common.store.connection import Row

Key = tuple[Any, ...]
Params = Mapping[str, Any]
Clock = Callable[[], datetime]

_PARTIAL: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Row], bool]]]] = {
    "runs": (
        ("tenant_id", "parent_run_id", "parent_step", "parent_idx"),
        lambda row: row["parent_run_id"] is not None,
    ),
    "approvals": (
        ("tenant_id", "run_id", "step", "idx"),
        lambda row: row["status"] in {"pending", "approved"},
    ),
}
"""Unique indexes over some rows only: their columns, and which rows."""


class Ids:
    """Mints UUIDv7 as `uuid7()` of the database does; each is greater than those before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def __call__(self) -> UUID:
        """Return the next id."""
        ms = int(self._clock().timestamp() * 1_000)
        self._last = max(self._last + 1, ms << 74 | getrandbits(72))
        high, low = divmod(self._last, 1 << 62)
        ms, of_ms = divmod(high, 1 << 12)
        return UUID(int=ms << 80 | 7 << 76 | of_ms << 64 | 2 << 62 | low)


class Table:
    """The rows of one table by primary key, and by the first two columns of it."""

    def __init__(self, definition: sa.Table, journal: Journal, clock: Clock, ids: Ids) -> None:
        self.name = definition.name
        self._journal = journal
        self._key = _getter([c.name for c in definition.primary_key])
        self._group = _getter([c.name for c in definition.primary_key][:2])
        self._rows: dict[Key, Row] = {}
        self._groups: dict[Key, dict[Key, Row]] = {}
        self._read = {c.name: _reader(c.type) for c in definition.columns}
        self._fill = {c.name: _default(c, clock, ids) for c in definition.columns}
        self._needed = [c.name for c in definition.columns if not c.nullable]
        self._unique: list[tuple[Callable[[Row], Key], Callable[[Row], bool]]] = [
            (_getter([c.name for c in one.columns]), lambda _: True)
            for one in definition.constraints
            if isinstance(one, sa.UniqueConstraint)
        ]
        if self.name in _PARTIAL:
            columns, which = _PARTIAL[self.name]
            self._unique.append((_getter(columns), which))
        self._taken: list[dict[Key, Key]] = [{} for _ in self._unique]

    def insert(self, values: Mapping[str, Any]) -> Row:
        """Add a row: what is not given is as the database would fill it. Raises
        `UniqueViolation`, `NotNullViolation` and `KeyError` for a column that there is not.
        """
        given = {name: self._read[name](value) for name, value in values.items()}
        row = {n: given[n] if n in given else fill() for n, fill in self._fill.items()}
        if self._key(row) in self._rows:
            raise UniqueViolation(f"duplicate key in {self.name}: {self._key(row)}")
        self._check(row)
        self._put(None, row)
        return row

    def update(self, row: Row, changes: Mapping[str, Any]) -> Row:
        """Replace a row, as it is now, by one with these changes; the key stays."""
        row = self._rows[self._key(row)]
        new = row | {name: self._read[name](value) for name, value in changes.items()}
        self._check(new)
        self._put(row, new)
        return new

    def delete(self, row: Row) -> None:
        """Take a row out."""
        self._put(row, None)

    def get(self, *key: Any) -> Row | None:
        """Return the row of a primary key."""
        return self._rows.get(key)

    def of(self, *group: Any) -> list[Row]:
        """Return the rows whose primary key begins with these two columns, in the order in which
        they were made.
        """
        return list(self._groups.get(group, {}).values())

    def where(self, **equal: Any) -> Iterator[Row]:
        """Go through the rows in which these columns have these values."""
        for row in list(self._rows.values()):
            if all(row[name] == value for name, value in equal.items()):
                yield row

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def _check(self, row: Row) -> None:
        for name in self._needed:
            if row[name] is None:
                raise NotNullViolation(f"null in {self.name}.{name}")
        key = self._key(row)
        for (getter, which), taken in zip(self._unique, self._taken, strict=True):
            if which(row) and taken.get(getter(row), key) != key:
                raise UniqueViolation(f"duplicate key in {self.name}: {getter(row)}")

    def _put(self, old: Row | None, new: Row | None) -> None:
        self._journal.note(self, old, new)
        self.swap(old, new)

    def swap(self, old: Row | None, new: Row | None) -> None:
        """Put a row in another's place, without a note: for `_put` and for undoing."""
        one = old if old is not None else new
        assert one is not None
        key, group = self._key(one), self._group(one)
        if old is not None:
            for (getter, which), taken in zip(self._unique, self._taken, strict=True):
                if which(old):
                    taken.pop(getter(old), None)
        if new is None:
            del self._rows[key]
            del self._groups[group][key]
            return
        self._rows[key] = new
        self._groups.setdefault(group, {})[key] = new
        for (getter, which), taken in zip(self._unique, self._taken, strict=True):
            if which(new):
                taken[getter(new)] = key


class Journal:
    """What was changed since the last mark, so that it can be undone."""

    def __init__(self) -> None:
        self._changes: list[tuple[Table, Row | None, Row | None]] = []

    def note(self, table: Table, old: Row | None, new: Row | None) -> None:
        """Write down a change that is about to be made."""
        self._changes.append((table, old, new))

    def mark(self) -> int:
        """Return a place to go back to."""
        return len(self._changes)

    def undo(self, mark: int) -> None:
        """Take back every change since `mark`, the last one first."""
        while len(self._changes) > mark:
            table, old, new = self._changes.pop()
            table.swap(new, old)

    def keep(self) -> None:
        """Forget what could be undone: it is committed."""
        self._changes.clear()


class Tables:
    """All tables of one store, its clock and its ids."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ids = Ids(clock)
        self.journal = Journal()
        self._tables = {
            t.name: Table(t, self.journal, clock, self.ids) for t in schema.metadata.sorted_tables
        }

    def __getattr__(self, name: str) -> Table:
        try:
            return self.__dict__["_tables"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def run_of(self, p: Params) -> Row | None:
        """Return the run that `tenant_id` and `run_id` of the parameters name."""
        return self.runs.get(p["tenant_id"], p["run_id"])

    def owned(self, p: Params) -> Row | None:
        """Return that run if `fence` and `claim_id` own it."""
        row = self.run_of(p)
        if row is None or row["fence"] != p["fence"] or row["claim_id"] != p["claim_id"]:
            return None
        return row

    def call_of(self, p: Params) -> Row | None:
        """Return the ledger row that the parameters name."""
        return self.tool_calls.get(p["tenant_id"], p["run_id"], p["step"], p["idx"])


def as_json(row: Row) -> Row:
    """Return a row as `to_jsonb` gives it."""
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Json) -> Json:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value


def _getter(names: Iterable[str]) -> Callable[[Row], Key]:
    wanted = tuple(names)
    if len(wanted) == 1:
        (only,) = wanted
        return lambda row: (row[only],)
    return operator.itemgetter(*wanted)


def _reader(kind: sa.types.TypeEngine[Any]) -> Callable[[Any], Any]:
    """Return what makes a column's value of one that came as JSON; null stays null."""
    read = _READERS.get(type(kind), lambda value: value)
    if isinstance(kind, ARRAY):
        item = _READERS.get(type(kind.item_type), lambda value: value)
        return lambda value: None if value is None else [item(v) for v in value]
    return lambda value: None if value is None else read(value)


def _time(value: str | datetime) -> datetime:
    at: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at.astimezone(UTC)


_READERS: Final[Mapping[type, Callable[[Any], Any]]] = {
    sa.Uuid: lambda value: UUID(value) if isinstance(value, str) else value,
    sa.DateTime: _time,
    sa.Date: lambda value: date.fromisoformat(value) if isinstance(value, str) else value,
    sa.Double: float,
    sa.Text: str,
}
_CONSTANTS: Final[Mapping[str, Callable[[], Any]]] = {
    "true": lambda: True,
    "false": lambda: False,
}


def _default(column: sa.Column[Any], clock: Clock, ids: Ids) -> Callable[[], Any]:
    """Return what fills a column that a statement does not name."""
    if not isinstance(column.server_default, sa.DefaultClause):
        return lambda: None
    said = str(column.server_default.arg)
    if said == "uuid7()":
        return ids
    if said == "clock_timestamp()":
        return clock
    if said.startswith("'"):
        text, _, cast = said[1:].rpartition("'")
        if cast in {"::jsonb", "::json"}:
            return dict if text == "{}" else list
        return list if cast.endswith("[]") else lambda: text
    if said in _CONSTANTS:
        return _CONSTANTS[said]
    number = float(said) if isinstance(column.type, sa.Double) else int(said)
    return lambda: number
