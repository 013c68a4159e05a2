"""During a roll-out: what an older worker does not know is given back, not failed."""

from __future__ import annotations

import inspect

import pytest
from pydantic import ValidationError

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.stored import read_stored
from harness_common.core.errors import NewerVersion
from harness_worker.advance import answer
from harness_worker.tasks import step
from tests.store.play import sql
from tests.worker.runtime import make_runtime

NEWER = {
    "a kind of step": "UPDATE runs SET next_kind = 'dream' WHERE id = :r",
    "a field of the agent": 'UPDATE agents SET spec = spec || \'{"mood": "calm"}\'',
    "a kind of agent": 'UPDATE agents SET spec = spec || \'{"kind": "swarm"}\'',
    "a field of the run": "UPDATE runs SET retry = retry || '{\"new_field\": 1}' WHERE id = :r",
}


@pytest.mark.parametrize("change", NEWER.values(), ids=NEWER)
async def test_a_run_of_a_newer_version_is_given_back_untouched(play, db, change):
    """A worker of before the upgrade would end a run that the next worker can do."""
    runtime = await make_runtime(db)
    run_id = await play.start()
    await sql(db, change, **({"r": run_id} if ":r" in change else {}))
    before = await _row(db, run_id)
    await answer(runtime, play.tenant_id, run_id, 1)
    after = await _row(db, run_id)
    assert after["status"] == "running"
    assert after["claim_id"] is None
    assert (after["version"], after["failures"], after["next_seq"], after["attempt"]) == (
        before["version"], before["failures"], before["next_seq"], before["attempt"],
    )  # fmt: skip
    assert 1 < after["again_s"] <= 2
    assert run_id not in runtime.held


async def test_it_is_rung_for_less_and_less_often(play, db):
    runtime = await make_runtime(db)
    run_id = await play.start()
    await sql(db, "UPDATE runs SET next_kind = 'dream', rings = 3 WHERE id = :r", r=run_id)
    await answer(runtime, play.tenant_id, run_id, 1)
    assert 7 < (await _row(db, run_id))["again_s"] <= 8
    await sql(db, "UPDATE runs SET rings = 30 WHERE id = :r", r=run_id)
    await answer(runtime, play.tenant_id, run_id, 1)
    assert 59 < (await _row(db, run_id))["again_s"] <= 60


async def test_the_next_worker_goes_on(play, db):
    run_id = await play.start()
    runtime = await make_runtime(db)
    await sql(db, "UPDATE runs SET next_kind = 'dream' WHERE id = :r", r=run_id)
    await answer(runtime, play.tenant_id, run_id, 1)
    await sql(db, "UPDATE runs SET next_kind = 'model' WHERE id = :r", r=run_id)  # it knows
    await answer(await make_runtime(db), play.tenant_id, run_id, 1)
    assert (await play.read(run_id)).state.step == 1


async def test_a_cancel_needs_no_knowledge_of_the_step(play, db):
    runtime = await make_runtime(db)
    run_id = await play.start()
    await sql(
        db,
        "UPDATE runs SET next_kind = 'dream', cancel_requested = true WHERE id = :r",
        r=run_id,
    )
    await answer(runtime, play.tenant_id, run_id, 1)
    assert (await play.read(run_id)).state.status == "cancelled"


def test_what_is_wrong_in_every_version_is_an_error():
    """It would be rung for until the end of time."""
    assert read_stored(AgentSpec, {"model": "scripted/demo"}, "it").model == "scripted/demo"
    with pytest.raises(ValidationError):
        read_stored(AgentSpec, {"max_turns": 0}, "it")
    with pytest.raises(ValidationError):
        read_stored(AgentSpec, {"max_turns": 0, "mood": "calm"}, "it")
    with pytest.raises(NewerVersion, match="mood"):
        read_stored(AgentSpec, {"mood": "calm"}, "it")


def test_a_doorbell_with_more_in_it_is_answered():
    """Celery would drop it as a wrong call."""
    inspect.signature(step.run).bind("tenant", "run", 3, "more", extra=1)


async def _row(db, run_id):
    (row,) = await sql(
        db,
        "SELECT *, extract(epoch FROM wake_at - clock_timestamp()) AS again_s FROM runs "
        "WHERE id = :r",
        r=run_id,
    )
    return row
