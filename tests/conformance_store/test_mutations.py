"""The suite can fail: with a mechanism taken out of a store, its tests are red."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harness_common.core.errors import HarnessError
from harness_common.store import postgres
from harness_common.store.db import Database
from harness_common.store.memory import (
    approvals,
    commit,
    ledger,
    limits,
    runs,
    scheduling,
    starting,
    tables,
)
from harness_common.store.memory.statements import STATEMENTS
from tests.conformance_store import (
    test_claims,
    test_commits,
    test_ledger,
    test_people,
    test_scheduling,
    test_session_order,
    test_starts,
)

RED = (AssertionError, ValueError, HarnessError, psycopg.Error, pytest.fail.Exception)
Test = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out: of the memory (a function of a module and what stands in its
    place) and of Postgres (a statement, what of it, and what instead); and a test that sees it.
    """

    name: str
    memory: tuple[Any, str, Callable[..., Any]]
    postgres: tuple[str, str, str]
    test: Test
    args: tuple[Any, ...] = ()


def _sees_all(run: Any, w: Any) -> bool:
    return bool(run["version"] == w["seen_version"] and run["fence"] == w["seen_fence"])


def _sees_no_input(run: Any, w: Any) -> bool:
    return _is_as_seen(run, w | {"seen_input_n": run["last_input_n"]})


_is_as_seen = commit._is_as_seen
_is_ready = runs._is_ready
_use = ledger._use

MUTATIONS = [
    Mutation(
        "a claim does not look whether another has the run",
        (runs, "_is_ready", lambda t, row, want, worker: row["version"] == want["version"]),
        ("claim", "AND coalesce(runs.status, '') = 'running' AND runs.claim_id IS NULL", ""),
        test_claims.test_of_many_claims_one_wins,
    ),
    Mutation(
        "a claim does not compare the version",
        (
            runs,
            "_is_ready",
            lambda t, row, want, worker: _is_ready(t, row, {"version": row["version"]}, worker),
        ),
        ("claim", "AND runs.version = want.version", ""),
        test_claims.test_a_stale_or_early_doorbell_gets_nothing,
    ),
    Mutation(
        "a commit does not compare the claim",
        (commit, "_is_as_seen", _sees_all),
        ("commit", "AND runs.claim_id IS NOT DISTINCT FROM t.seen_claim_id", ""),
        test_commits.test_a_commit_over_anything_else_than_what_is_there_writes_nothing,
        ("claim_id",),
    ),
    Mutation(
        "a commit does not compare the version",
        (
            commit,
            "_is_as_seen",
            lambda run, w: _is_as_seen(run, w | {"seen_version": run["version"]}),
        ),
        ("commit", "AND runs.version = t.seen_version", ""),
        test_commits.test_a_commit_over_anything_else_than_what_is_there_writes_nothing,
        ("version",),
    ),
    Mutation(
        "a commit does not look for outside inputs",
        (commit, "_is_as_seen", _sees_no_input),
        ("commit", "AND runs.last_input_n = t.seen_input_n", ""),
        test_commits.test_a_commit_over_anything_else_than_what_is_there_writes_nothing,
        ("input",),
    ),
    Mutation(
        "an intent does not look for a cancel",
        (
            tables.Tables,
            "owned",
            lambda self, p: (r := self.run_of(p)) and {**r, "cancel_requested": False},
        ),
        ("call_intent", "AND NOT cancel_requested", ""),
        test_ledger.test_no_intent_is_written_after_a_cancel,
    ),
    Mutation(
        "a result is taken for any attempt",
        (ledger, "_is_attempt", lambda call, p: True),
        ("call_result", "AND attempt_id = %(attempt_id)s AND status IN", "AND status IN"),
        test_ledger.test_a_result_is_recorded_once_and_for_its_own_attempt,
    ),
    Mutation(
        "the step's commit writes over the ledger",
        (commit, "takes_outcome", lambda call: True),
        (
            "commit",
            "AND (tool_calls.status IN ('proposed', 'validating', 'awaiting_approval')\n"
            "           OR (tool_calls.status = 'running' AND (tool_calls.resume_at IS NOT NULL OR "
            "tool_calls.attempt_id IS NULL)))",
            "",
        ),
        test_ledger.test_what_the_ledger_has_is_not_written_over_by_the_steps_commit,
    ),
    Mutation(
        "a yes is good for any arguments",
        (ledger, "_use", lambda t, p, digest: _use_any(t, p)),
        ("approval_use", "AND approvals.digest = %(digest)s", ""),
        test_people.test_a_yes_is_for_exactly_what_was_shown,
    ),
    Mutation(
        "a decision is written whenever it comes",
        (approvals, "_in_time", lambda row, now: True),
        ("approval_decide", "AND expires_at > clock_timestamp()", ""),
        test_people.test_a_decision_after_its_time_is_not_written,
    ),
    Mutation(
        "an idempotency key is never kept",
        (starting, "idempotency", lambda t, p: [{"reserved": True}]),
        (
            "idempotency",
            "%(key)s, %(digest)s",
            "gen_random_uuid()::text, %(digest)s",
        ),
        test_starts.test_the_same_request_with_the_same_key_starts_one_run,
    ),
    Mutation(
        "a pause of a provider is shortened",
        (limits, "_longest", lambda old, new: new),
        ("throttle_hit", "greatest(t.until, excluded.until)", "excluded.until"),
        test_scheduling.test_a_throttle_holds_for_all_and_is_never_shortened,
    ),
    Mutation(
        "a run looks only at the one before it in its session",
        (scheduling, "last_runs", lambda t, of, run_id: [t.runs.get(of["tenant_id"], run_id)]),
        ("release_sessions", "b.finished_at IS NOT NULL AND NOT b.started", "false"),
        test_session_order.test_a_run_goes_on_waiting_when_the_one_before_it_is_cancelled,
    ),
]


def _use_any(t: Any, p: Any) -> bool:
    row = t.approvals.get(p["tenant_id"], p["approval_id"])
    return bool(_use(t, {**p, "idx": p["idx"]}, row["digest"]))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "_"))
async def test_a_store_without_a_mechanism_is_found_out(play, monkeypatch, mutation):
    if isinstance(play.db, Database) and type(play.db) is not Database:
        module, name, instead = mutation.memory
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, instead)
        if name in STATEMENTS:
            monkeypatch.setitem(STATEMENTS, name, instead)
    else:
        _change_sql(monkeypatch, *mutation.postgres)
    with pytest.raises(RED):
        await mutation.test(play, *mutation.args)


def _change_sql(monkeypatch: pytest.MonkeyPatch, statement: str, what: str, instead: str) -> None:
    """Send another text for one statement."""
    whole = postgres.sql(statement).decode()
    assert what in whole, f"{statement} no longer says {what}"
    changed, sent = whole.replace(what, instead).encode(), postgres.sql
    monkeypatch.setattr(postgres, "sql", lambda name: changed if name == statement else sent(name))
