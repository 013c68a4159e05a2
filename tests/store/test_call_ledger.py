"""The ledger of calls in Postgres: intents, results, and what races them."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from harness_common.commands import cancel_run
from harness_common.core.tool_call import CallStatus
from tests.store.meeting import until_blocked
from tests.store.play import ran, say


def _key(run, idx=0):
    return {"tenant_id": run.tenant_id, "run_id": run.id, "step": run.state.step + 1, "idx": idx}


async def _intend(play, run, *, prior=None, status="proposed", **other):
    attempt_id = uuid4()
    params = {
        "version": run.version,
        "fence": run.fence,
        "claim_id": run.claim_id,
        "attempt_id": attempt_id,
        "prior_attempt_id": prior,
        "from_status": [status],
        "effect": "write",
        "tool_version": "1",
        "ran_arguments": None,
        "served_by": None,
        "fingerprint": "f",
        "payload": "{}",
        "policy": None,
        "approval_id": None,
        "approval_digest": None,
    }
    rows = await play.db.fetch("call_intent", _key(run) | params | other)
    return attempt_id if rows else None


async def _result(play, run, attempt_id, text="done"):
    params = {
        "attempt_id": attempt_id,
        "status": "succeeded",
        "result": text,
        "error_type": None,
        "trust": "trusted",
        "artifacts": [],
        "duration_ms": 1.0,
        "cost_usd": 0.0,
        "resume_at": None,
        "evidence": f'{{"late_result": "{text}"}}',
    }
    return (await play.db.fetch("call_result", _key(run) | params))[0]["won"]


async def _give_up(play, run, attempt_id):
    params = {"attempt_id": attempt_id, "status": "unknown", "why": "gone"}
    return bool(await play.db.fetch("call_give_up", _key(run) | params))


@pytest.fixture
async def owned(play):
    """A claimed run whose coming step has one proposed call."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    return await play.claim(run_id)


async def test_an_intent_is_taken_once(play, owned):
    """INV3: two with the same plan, one goes ahead."""
    async with play.db.transaction() as conn:
        await conn.execute("SELECT FROM runs FOR UPDATE")
        trying = [asyncio.ensure_future(_intend(play, owned)) for _ in range(4)]
        await until_blocked(conn, 4)
    made = await asyncio.gather(*trying)
    assert sum(a is not None for a in made) == 1
    types = [e["type"] for e in await play.events(owned.id)]
    assert types.count("tool.started") == 1
    await play.check_whole(owned.id)


async def test_no_intent_after_a_cancel(play, owned):
    """INV9, INV3."""
    await cancel_run(play.db, play.tenant_id, owned.id, by="ann")
    assert await _intend(play, owned) is None
    assert (await play.calls(owned.id))[0]["status"] == "proposed"


@pytest.mark.parametrize(
    "other",
    [{"fence": 1}, {"claim_id": uuid4()}, {"version": 1}],
    ids=["fence", "claim", "version"],
)
async def test_no_intent_of_a_stale_owner(play, owned, other):
    """INV6, INV3."""
    assert await _intend(play, owned, **other) is None
    assert await _intend(play, owned) is not None


async def test_cancel_racing_an_intent(play):
    """INV9: either the intent came first or it is refused; never an intent after the cancel's
    event.
    """
    for _ in range(8):
        run_id = await play.start()
        await play.step(run_id, say(tools=["look"]))
        run = await play.claim(run_id)
        attempt_id, _ = await asyncio.gather(
            _intend(play, run), cancel_run(play.db, play.tenant_id, run_id, by="ann")
        )
        types = [e["type"] for e in await play.events(run_id)]
        assert types[-1] == "run.cancel_requested"
        assert ("tool.started" in types) == (attempt_id is not None)
        await play.check_whole(run_id)


async def test_a_result_before_the_unknown_wins(play, owned):
    attempt_id = await _intend(play, owned)
    assert await _result(play, owned, attempt_id)
    assert not await _give_up(play, owned, attempt_id)
    (call,) = await play.calls(owned.id)
    assert (call["status"], call["result"], call["evidence"]) == ("succeeded", "done", None)
    assert not await _result(play, owned, attempt_id, "twice")


async def test_a_result_after_the_unknown_is_evidence(play, owned):
    """INV3: the late result never is a step, and is not lost either."""
    attempt_id = await _intend(play, owned)
    assert await _give_up(play, owned, attempt_id)
    assert not await _result(play, owned, attempt_id, "late")
    (call,) = await play.calls(owned.id)
    assert (call["status"], call["result"]) == ("unknown", None)
    assert call["evidence"]["late_result"] == "late"
    assert call["evidence"]["why"] == "gone", "why it was given up is evidence too"


async def test_a_result_that_races_the_unknown_is_won_or_evidence(play, owned):
    """INV3: the result waits for the row that is just being declared unknown, and must then leave
    its evidence.
    """
    attempt_id = await _intend(play, owned)
    async with play.db.transaction() as conn:
        await conn.execute(
            "UPDATE tool_calls SET status = 'unknown' WHERE run_id = %s", (owned.id,)
        )
        waiting = asyncio.create_task(_result(play, owned, attempt_id, "late"))
        await until_blocked(conn, 1)
    assert not await waiting
    (call,) = await play.calls(owned.id)
    assert call["status"] == "unknown"
    assert (call["evidence"] or {}).get("late_result") == "late"


async def test_an_attempt_that_is_not_mine_is_not_touched(play, owned):
    attempt_id = await _intend(play, owned)
    assert not await _result(play, owned, uuid4())
    assert not await _give_up(play, owned, uuid4())
    assert (await play.calls(owned.id))[0]["attempt_id"] == attempt_id


async def test_a_step_that_ends_does_not_overwrite_the_ledger_of_a_write(play, owned):
    """INV3: what the ledger recorded stays; the step's outcome only closes what had not begun."""
    attempt_id = await _intend(play, owned)
    await _result(play, owned, attempt_id, "the truth")
    await play.settle(owned, ran("something else", status=CallStatus.FAILED))
    assert (await play.calls(owned.id))[0]["result"] == "the truth"
