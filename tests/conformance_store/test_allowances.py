"""What a retry or a fork may use: what its source was given once more, and never more."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from harness_common.commands import ForkRun, fork_run, retry_run
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from tests.conformance_store.board import Board
from tests.store.play import WHEN, ran, say

FAILS = StepFailed(Failure("permanent", "BROKEN", "it is broken"), WHEN)


async def used_up(play: Board, run_id: UUID) -> None:
    """Take a run one round further, then fail it."""
    await play.step(run_id, say("look", tools=["look"]))
    await play.step(run_id, ran("found"))
    await play.step(run_id, FAILS)


async def retry(play: Board, run_id: UUID) -> UUID:
    return (await retry_run(play.db, play.tenant_id, run_id, created_by="ann")).run_id


@pytest.mark.parametrize(
    ("given", "each"),
    [({"max_turns": 3}, 3), ({"max_tokens": 100}, 100), ({"max_cost_usd": 2.0}, 2.0)],
    ids=lambda one: str(next(iter(one))) if isinstance(one, dict) else "",
)
async def test_each_retry_has_the_allowance_of_its_source_and_no_more(
    play: Board, given: dict[str, Any], each: float
):
    """Else it would double each time, and who retries by a script would have no bound at all."""
    (name,) = given
    run_id = await play.start(**given)
    for _ in range(4):
        await used_up(play, run_id)
        run_id = await retry(play, run_id)
        state = (await play.read(run_id)).state
        used = {
            "max_turns": state.turn,
            "max_tokens": state.input_tokens + state.output_tokens,
            "max_cost_usd": state.cost_usd,
        }[name]
        assert used > 0
        assert getattr(state.limits, name) - used == pytest.approx(each)


async def test_a_fork_of_a_fork_has_the_allowance_of_a_run(play: Board):
    source = await play.start(max_turns=3)
    await used_up(play, source)
    first = await fork_run(play.db, play.tenant_id, source, ForkRun(step=2))
    second = await fork_run(play.db, play.tenant_id, first.run_id, ForkRun(step=2))
    state = (await play.read(second.run_id)).state
    assert (state.turn, state.limits.max_turns) == (1, 4)


async def test_a_retry_keeps_the_time_that_its_source_was_given(play: Board):
    run_id = await play.start(timeout_s=60.0)
    for _ in range(3):
        await play.step(run_id, FAILS)
        run_id = await retry(play, run_id)
        deadline = (await play.read(run_id)).state.limits.deadline
        assert isinstance(deadline, datetime)
        left = deadline - await play.now()
        assert timedelta(seconds=55) < left <= timedelta(seconds=61)
