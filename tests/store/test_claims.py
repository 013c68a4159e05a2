"""Claiming runs against Postgres, also all at once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from harness_common.commands import cancel_run
from harness_common.core.inputs import Released, StepFailed
from harness_common.core.message import user
from harness_common.core.run import Status
from harness_common.core.step import Failure
from harness_common.store.claim import Want, claim
from tests.store.play import WHEN, say


async def test_eight_concurrent_claims_have_one_winner(play):
    run_id = await play.start()
    won = [c for c in await asyncio.gather(*(play.try_claim(run_id, 1) for _ in range(8))) if c]
    assert len(won) == 1
    run = won[0].run
    assert (run.fence, run.attempt, run.state.claimed) == (1, 1, True)
    assert (await play.read(run_id)).claim_id == run.claim_id


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_a_doorbell_of_another_version_is_harmless(play, version):
    run_id = await play.start()
    assert await play.try_claim(run_id, version) is None
    assert (await play.read(run_id)).fence == 0


async def test_every_claim_raises_the_fence(play):
    run_id = await play.start()
    fences = []
    for _ in range(4):
        run = await play.claim(run_id)
        fences.append(run.fence)
        await play.settle(run, Released("x"))
    assert fences == [1, 2, 3, 4]
    assert (await play.read(run_id)).version == 1


async def test_runs_are_claimed_together_with_what_their_steps_need(play):
    """One statement, each run for itself: a loser between two winners, messages after those known,
    the ledger.
    """
    first, second, third = [await play.start(f"run {n}") for n in range(3)]
    await play.step(first, say(tools=["look"]))
    await play.claim(second)
    wants = [
        Want(play.tenant_id, first, 2, uuid4(), have=1),
        Want(play.tenant_id, second, 1, uuid4()),
        Want(play.tenant_id, third, 1, uuid4()),
    ]
    a, lost, b = await claim(play.db, wants, worker=play.worker, hold_s=900)
    assert a is not None
    assert b is not None
    assert lost is None
    assert (a.run.id, a.run.claim_id, a.run.fence) == (first, wants[0].claim_id, 2)
    assert (b.run.id, b.run.claim_id, b.run.fence) == (third, wants[2].claim_id, 1)
    assert [m.role for m in a.messages] == ["assistant"]
    assert [c["name"] for c in a.calls] == ["look"]
    assert b.messages == (user("run 2"),)
    assert b.calls == ()


async def test_overlapping_batches_of_claims_give_each_run_one_owner(play):
    runs = [await play.start() for _ in range(6)]
    orders = [runs, runs[::-1], runs[3:] + runs[:3], runs]
    made = await asyncio.gather(
        *(
            claim(
                play.db,
                [Want(play.tenant_id, r, 1, uuid4()) for r in order],
                worker=uuid4(),
                hold_s=900,
            )
            for order in orders
        )
    )
    won = [c.run.id for batch in made for c in batch if c is not None]
    assert sorted(won) == sorted(runs)


async def test_what_has_ended_or_waits_cannot_be_claimed(play):
    run_id = await play.start()
    await play.step(run_id, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    assert (await play.read(run_id)).state.status is Status.DELAYED
    assert await play.try_claim(run_id, (await play.read(run_id)).version) is None
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert await play.try_claim(run_id, (await play.read(run_id)).version) is None
    assert await play.running() == 0
