"""Starts of a tenant that come together share a transaction.

They go one by one in Postgres, since each holds its tenant's slots. Those that come while one is
under way go together in the next: it holds the slots once and waits for one fsync, and a burst of
one tenant takes one of this process' connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from harness_common.batch import Batcher
from harness_common.commands.accept import Start, accept, told
from harness_common.commands.request import Started
from harness_common.store.connection import DatabaseUnavailable, RowsHeld
from harness_common.store.db import Database

_LARGEST: Final = 16
"""Runs that one transaction accepts: the steps that end meanwhile wait for the same slots."""
Outcome = Started | Exception


@dataclass(slots=True, eq=False)
class _Waiting:
    """A start, and whether its transaction has begun or nobody waits for it any more."""

    start: Start
    begun: bool = False
    dropped: bool = False


_Numbered = tuple[int, _Waiting]
_Starts = Batcher[_Waiting, Outcome]
_STARTS: Final[WeakKeyDictionary[Database, WeakValueDictionary[UUID, _Starts]]] = (
    WeakKeyDictionary()
)
"""Of each tenant that starts a run just now."""


async def start_together(db: Database, tenant_id: UUID, start: Start) -> Started:
    """Accept a run with those that wait, in one transaction.

    Raises what the start is refused with, and `RowsHeld` when those before it take longer than a
    statement may: then it was not begun.
    """
    waiting = _Waiting(start)
    answer = _starts(db, tenant_id)(waiting)
    try:
        await asyncio.wait([answer], timeout=db.timeout_s)
        if not waiting.begun:
            raise RowsHeld(f"other starts of the tenant took all of {db.timeout_s:g} s")
        outcome = await answer
    finally:
        waiting.dropped = True
    return told(outcome, start.request)


def _starts(db: Database, tenant_id: UUID) -> _Starts:
    """Return what gathers the starts of a tenant in this process."""

    async def work(waiting: Sequence[_Waiting]) -> list[Outcome]:
        return await _in_order(db, tenant_id, waiting)

    of_db = _STARTS.setdefault(db, WeakValueDictionary())
    known = of_db.get(tenant_id)
    if known is None:
        of_db[tenant_id] = known = Batcher(work, largest=_LARGEST, parallel=1)
    return known


async def _in_order(db: Database, tenant_id: UUID, waiting: Sequence[_Waiting]) -> list[Outcome]:
    """Start what is still waited for. Each sees what those before it in its session, or with its
    key, have done: such go in a transaction of their own.
    """
    outcomes: dict[int, Outcome] = {}
    left = list(enumerate(waiting))
    while left:
        now, left = _apart(left)
        wanted = [(n, one) for n, one in now if not one.dropped]
        for _, one in wanted:
            one.begun = True
        got = await _in_one(db, tenant_id, [one.start for _, one in wanted])
        outcomes |= {n: outcome for (n, _), outcome in zip(wanted, got, strict=True)}
    nobody = RowsHeld("nobody waited for this start any more")
    return [outcomes.get(n, nobody) for n in range(len(waiting))]


def _apart(waiting: Sequence[_Numbered]) -> tuple[list[_Numbered], list[_Numbered]]:
    """Part starts into those that share neither session nor key with one before, and the rest."""
    now: list[_Numbered] = []
    later: list[_Numbered] = []
    seen: set[UUID | str] = set()
    for n, one in waiting:
        request = one.start.request
        marks = {m for m in (request.session_id, request.idempotency_key) if m is not None}
        (later if marks & seen else now).append((n, one))
        seen |= marks
    return now, later


async def _in_one(db: Database, tenant_id: UUID, starts: Sequence[Start]) -> list[Outcome]:
    """Start runs in one transaction. When it fails as a whole each is tried alone, so that one that
    cannot be written fails nobody else: whatever is no `DatabaseUnavailable` came before COMMIT, or
    is the server's answer that it did not commit. After that error runs may be there.
    """
    if not starts:
        return []
    try:
        async with db.tenant_transaction(tenant_id) as conn:
            return [*await accept(db, conn, tenant_id, starts)]
    except DatabaseUnavailable as error:
        return [error] * len(starts)
    except Exception as error:  # noqa: BLE001 - handed to whoever asked for the run
        if len(starts) == 1:
            return [error]
        return [outcome for one in starts for outcome in await _in_one(db, tenant_id, [one])]
