"""Every statement that this store has, by the name of its file in `store/sql`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from harness_common.store.connection import Row
from harness_common.store.memory import (
    approvals,
    catalog,
    commit,
    fleet,
    ledger,
    limits,
    runs,
    scheduling,
    starting,
)
from harness_common.store.memory.tables import Params, Tables

Do = Callable[[Tables, Params], list[Row]]

STATEMENTS: Final[dict[str, Do]] = {
    **runs.STATEMENTS,
    **commit.STATEMENTS,
    **starting.STATEMENTS,
    **ledger.STATEMENTS,
    **approvals.STATEMENTS,
    **scheduling.STATEMENTS,
    **fleet.STATEMENTS,
    **limits.STATEMENTS,
    **catalog.STATEMENTS,
}
"""What is not here needs Postgres (see docs/notebooks.md)."""
