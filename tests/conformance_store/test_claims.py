"""Claims: one owner, at exactly the version that was rung for, with what the next step needs."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from harness_common.commands import cancel_run
from harness_common.core.inputs import OwnerLost, Released
from harness_common.core.run import Status
from harness_common.store.claim import Want, claim
from tests.store.play import ran, say


async def test_a_run_starts_at_once_when_there_is_room(play):
    run_id = await play.start()
    run = await play.read(run_id)
    assert (run.version, run.fence, run.claim_id, run.rings) == (1, 0, None, 1)
    assert run.state.status is Status.RUNNING
    assert await play.types(run_id) == ["run.created", "run.started"]
    assert await play.running() == 1
    (look,) = await play.db.fetch("look", {"lease_s": 60.0})
    assert look["due_in_s"] > 0, "a lost doorbell would not be found"


async def test_of_many_claims_one_wins(play):
    run_id = await play.start()
    tried = await asyncio.gather(*(play.try_claim(run_id, 1, uuid4()) for _ in range(12)))
    (won,) = [one for one in tried if one is not None]
    run = await play.read(run_id)
    assert (run.claim_id, run.fence, run.attempt) == (won.run.claim_id, 1, 1)
    assert run.claimed_by == won.run.claimed_by
    assert await play.try_claim(run_id, 1) is None


async def test_a_stale_or_early_doorbell_gets_nothing(play):
    run_id = await play.start()
    for version in (0, 2):
        assert await play.try_claim(run_id, version) is None
    await play.step(run_id, say(tools=["look"]))
    assert await play.try_claim(run_id, 1) is None
    assert await play.try_claim(uuid4(), 1) is None
    assert (await play.read(run_id)).claim_id is None


async def test_a_batch_of_claims_answers_each_on_its_own(play):
    ids = [await play.start() for _ in range(3)]
    assert await play.try_claim(ids[1], 1) is not None
    wants = [Want(play.tenant_id, run_id, 1, uuid4()) for run_id in ids]
    first, second, third = await claim(play.db, wants, worker=play.worker, hold_s=900)
    assert first is not None
    assert third is not None
    assert (first.run.id, second, third.run.id) == (ids[0], None, ids[2])
    assert first.run.claim_id == wants[0].claim_id


async def test_a_claim_brings_the_messages_that_are_not_known_yet(play):
    run_id = await play.start("hello")
    await play.step(run_id, say("let me see", tools=["look"]))
    await play.step(run_id, ran("found"))
    version = (await play.read(run_id)).version
    claimed = await play.try_claim(run_id, version, have=1)
    assert [m.role for m in claimed.messages] == ["assistant", "tool"]
    assert claimed.messages == tuple((await play.messages(run_id))[1:])
    assert claimed.calls == (), "a model step has no calls"


async def test_a_claim_of_a_tools_step_brings_its_ledger(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look", "pay"]))
    claimed = await play.try_claim(run_id, (await play.read(run_id)).version)
    calls = [(c["idx"], c["name"], c["arguments"], c["status"]) for c in claimed.calls]
    assert calls == [(0, "look", {"i": 0}, "proposed"), (1, "pay", {"i": 1}, "proposed")]
    assert claimed.calls[0]["attempt"] == 0
    assert claimed.calls[0]["artifacts"] == []


async def test_a_run_that_waits_or_is_over_cannot_be_claimed(play):
    run_id = await play.start()
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    run = await play.read(run_id)
    assert run.state.status is Status.CANCELLED
    assert await play.try_claim(run_id, run.version) is None


async def test_a_released_claim_can_be_taken_again_under_a_higher_fence(play):
    run_id = await play.start()
    first = await play.claim(run_id)
    applied = await play.settle(first, Released("the worker stops"))
    assert applied.should_ring
    second = await play.claim(run_id)
    assert second.fence == first.fence + 1
    assert second.claim_id != first.claim_id


async def test_a_suspect_goes_only_to_a_process_that_holds_one_run(play):
    run_id = await play.start()
    for _ in range(2):
        await play.apply(await play.claim(run_id), OwnerLost("w", "killed"))
    version = (await play.read(run_id)).version
    assert await play.try_claim(run_id, version) is None
    alone = await play.register(uuid4(), concurrency=1)
    assert await play.try_claim(run_id, version, alone) is not None


async def test_ids_are_ordered_by_time(play):
    ids = []
    for _ in range(5):
        ids.append(await play.start())
        await asyncio.sleep(0.002)
    assert ids == sorted(ids)
    assert {one.version for one in ids} == {7}
    at = (await play.now()).timestamp()
    assert all(abs((one.int >> 80) / 1000 - at) < 60 for one in ids)
