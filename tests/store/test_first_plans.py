"""What is prepared while the database is empty finds a run by its key, not by reading them all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from harness_common.embedded import create_database, drop_database
from harness_common.store.db import PLANS
from harness_common.store.migrate import migrate
from tests.store.plans import numbered
from tests.store.tenancy import two_tenants

KEYS = {
    "runs": ("id", "parent_run_id"),
    "sessions": ("id",),
    "messages": ("run_id",),
    "tool_calls": ("run_id",),
    "approvals": ("run_id", "id"),
}
"""By what a statement about one run finds its rows in a table that grows."""
ABOUT_A_RUN = (
    "claim", "commit", "start_begin", "start_insert", "read_run", "lock_run", "event_append",
    "call_intent", "call_result", "call_give_up", "call_keep", "call_needs", "unclaim", "history",
    "session_going", "retry_follows", "child_before", "approval_seek", "approval_use",
    "effect_read", "policy_facts",
)  # fmt: skip
NO_ROW_TO_FIND = {"start_begin": {"runs_queue_idx"}}
"""Indexes that a statement asks only whether they have anything of a tenant."""


def scans(node: dict[str, Any], table: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield table, index and condition of every look into an index below a node."""
    table = node.get("Relation Name", table)
    if "Index Name" in node:
        yield table, node["Index Name"], node.get("Index Cond", "")
    for below in node.get("Plans", ()):
        yield from scans(below, table)


@pytest.fixture(scope="module")
def empty(store_postgres) -> Iterator[psycopg.Connection[Any]]:
    url = create_database(store_postgres.admin_url, "first_plans")
    migrate(url, 1)
    with psycopg.connect(url, autocommit=True, options=PLANS) as conn:
        yield conn
    drop_database(store_postgres.admin_url, "first_plans")


def found_by(empty: psycopg.Connection[Any], name: str) -> list[tuple[str, str, str]]:
    asked = f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered(name)}"
    (told,) = empty.execute(asked.encode()).fetchall()[0]
    plan = told if isinstance(told, list) else json.loads(told)
    found = list(scans(plan[0]["Plan"]))
    assert found
    return found


def test_whether_runs_are_past_their_age_is_one_look_for_each_that_have_lost_the_same(empty):
    (look,) = [one for one in found_by(empty, "prune_lanes") if one[0] == "runs"]
    assert re.search(r"pruned = .* \(finished_at < ", look[2]), look


@pytest.mark.parametrize("name", ABOUT_A_RUN)
def test_a_statement_about_one_run_uses_its_key_from_the_first(empty, name):
    found = found_by(empty, name)
    reads_all = [
        (table, index, condition)
        for table, index, condition in found
        if table in KEYS
        and index not in NO_ROW_TO_FIND.get(name, ())
        and not any(re.search(rf"\b{key} = ", condition) for key in KEYS[table])
    ]
    assert reads_all == []


def test_what_postgres_has_seen_itself_stays(fresh_database_url):
    of_runs = (
        "SELECT n_distinct FROM pg_stats WHERE tablename = 'runs' AND attname = 'tenant_id' "
        "AND NOT inherited"
    )
    with psycopg.connect(fresh_database_url, autocommit=True) as conn:
        assert conn.execute(of_runs).fetchall() == [(1,)]
        two_tenants(conn)
        conn.execute("ANALYZE runs")
        migrate(fresh_database_url)
        assert conn.execute(of_runs).fetchall() == [(-1,)]
