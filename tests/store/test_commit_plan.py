"""The commit of many steps costs as much for each of them as the commit of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from harness_common.store.db import Database
from harness_common.store.postgres import pg, sql

_SCANS_OF_A_BATCH = {"t", "run"}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _batches_in(plan: dict[str, Any]) -> int:
    """Count the scans below a node that each read all runs of the commit."""
    return sum(
        node.get("CTE Name") in _SCANS_OF_A_BATCH or node.get("Alias") == "t"
        for node in _nodes(plan)
    )


async def test_no_part_of_a_commit_joins_the_batch_with_itself(db: Database) -> None:
    """64 runs against 64 in a dozen places is where a commit of many steps would lose its time."""
    text = sql("commit").replace(b"%(writes)s", b"'[]'").replace(b"%%", b"%")
    async with db.connection() as conn:
        rows = await (await pg(conn).execute(b"EXPLAIN (FORMAT JSON) " + text)).fetchall()
    (found,) = rows[0].values()
    (whole,) = json.loads(found) if isinstance(found, str) else found
    parts = [p for p in whole["Plan"]["Plans"] if p.get("Parent Relationship") == "InitPlan"]
    assert {p["Subplan Name"] for p in parts} >= {"CTE run", "CTE event", "CTE message", "CTE slot"}
    for part in parts:
        assert _batches_in(part) <= 1, part["Subplan Name"]
