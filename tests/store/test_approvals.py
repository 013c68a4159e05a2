"""Decisions about approvals in Postgres: who may, what was shown, and one winner of every race."""

from __future__ import annotations

import asyncio

import pytest

from harness_common.commands import Approver, Decide, cancel_run, decide_approval
from harness_common.core.errors import Conflict, Denied, HarnessError, NotFound
from harness_common.core.inputs import StepDone
from harness_common.core.run import Status
from harness_common.core.step import ToolsWaiting
from harness_common.store.approvals import list_approvals, read_approval
from harness_common.store.audit import Actor
from tests.store.approval_play import asks, waiting
from tests.store.play import WHEN, make_tenant, say, sql


async def rows(play, run_id):
    return await sql(
        play.db, "SELECT * FROM approvals WHERE run_id = :r ORDER BY idx, created_at", r=run_id
    )


async def decide(play, row, verdict="approved", *, by="key_bob", role="approver", **more):
    said = Decide(verdict, more.pop("digest", row["digest"]), **more)
    approver = Approver(Actor(by), role)
    return await decide_approval(play.db, play.tenant_id, row["id"], said, approver=approver)


async def test_the_row_comes_with_the_wait_and_goes_with_a_lost_commit(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    run = await play.claim(run_id)
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    result = StepDone(ToolsWaiting((asks(0),)), WHEN)
    refused = await play.apply(run, result, owner=True)
    assert refused is None
    assert await rows(play, run_id) == []


async def test_a_decision_is_safe_to_repeat_and_another_is_told_who_was_first(play):
    run_id = await waiting(play, asks(0), asks(1))
    first, second = await rows(play, run_id)
    await decide(play, first)
    _, again = await decide(play, first, by="key_carol")
    assert not again.changed
    with pytest.raises(Conflict) as caught:
        await decide(play, first, "denied", reason="no", by="key_carol")
    assert caught.value.error_code == "APPROVAL_DECIDED"
    assert caught.value.detail["decided_by"] == "key_bob"
    with pytest.raises(Conflict):
        await decide(play, first, arguments={"i": 5}, by="key_carol")
    await decide(play, second, "denied", reason="no")
    _, again = await decide(play, second, "denied", reason="not at all")
    assert not again.changed
    with pytest.raises(Conflict, match="key_bob denied it already"):
        await decide(play, second)
    decided = [e for e in await play.events(run_id) if e["type"] == "approval.decided"]
    assert len(decided) == 2
    await play.check_whole(run_id)


async def test_a_repeated_change_is_the_same_decision(play):
    run_id = await waiting(play, asks(0))
    (row,) = await rows(play, run_id)
    await decide(play, row, arguments={"i": 7})
    _, again = await decide(play, row, arguments={"i": 7.0})
    assert not again.changed


async def test_a_digest_that_was_not_shown_is_refused_with_the_right_one(play):
    run_id = await waiting(play, asks(0))
    (row,) = await rows(play, run_id)
    for verdict in ("approved", "denied"):
        with pytest.raises(Conflict) as caught:
            await decide(play, row, verdict, digest="0" * 64, reason="x")
        assert caught.value.error_code == "DIGEST_MISMATCH"
        assert caught.value.detail["digest"] == row["digest"]
    assert [r["status"] for r in await rows(play, run_id)] == ["pending"]


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_only_the_roles_that_policy_names_may_decide(play, role):
    run_id = await waiting(play, asks(0))
    (row,) = await rows(play, run_id)
    for verdict in ("approved", "denied"):
        with pytest.raises(Denied) as caught:
            await decide(play, row, verdict, role=role, reason="x")
        assert caught.value.error_code == "APPROVER_ROLE"
        assert caught.value.detail["limit"] == ["approver"]
    assert [r["status"] for r in await rows(play, run_id)] == ["pending"]


async def test_who_started_the_run_may_not_approve_with_four_eyes(play):
    run_id = await waiting(play, asks(0, four_eyes=True), asks(1, four_eyes=True), asks(2))
    first, second, plain = await rows(play, run_id)
    with pytest.raises(Denied, match="key_ann started the run") as caught:
        await decide(play, first, by="key_ann")
    assert caught.value.error_code == "FOUR_EYES"
    await decide(play, first, by="key_bob")
    await decide(play, second, "denied", reason="no", by="key_ann")
    await decide(play, plain, by="key_ann")


async def test_another_tenant_sees_and_decides_nothing(play, db):
    run_id = await waiting(play, asks(0))
    (row,) = await rows(play, run_id)
    other = await make_tenant(db)
    assert await list_approvals(db, other, limit=10) == []
    with pytest.raises(NotFound):
        await read_approval(db, other, row["id"])
    said = Decide("approved", row["digest"])
    with pytest.raises(NotFound):
        await decide_approval(
            db, other, row["id"], said, approver=Approver(Actor("key_eve"), "approver")
        )


async def test_the_list_is_paged_newest_first(play, db):
    run_id = await waiting(play, *(asks(i) for i in range(5)))
    found = await list_approvals(db, play.tenant_id, limit=3)
    rest = await list_approvals(db, play.tenant_id, before=found[-1]["id"], limit=3)
    ids = [r["id"] for r in (*found, *rest)]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 5
    assert {r["run_id"] for r in found} == {run_id}


# ── races ────────────────────────────────────────────────────────────────────────────────────────


async def both(*coroutines):
    """Run at once; return what each came to: an error's code, or None."""
    done = await asyncio.gather(*coroutines, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException) and not isinstance(one, HarnessError):
            raise one
    return [one.error_code if isinstance(one, HarnessError) else None for one in done]


@pytest.mark.parametrize("turn", range(6))
async def test_two_people_at_once_one_wins(play, turn):
    run_id = await waiting(play, asks(0), asks(1))
    for row in await rows(play, run_id):
        people = [
            decide(play, row, by="key_bob"),
            decide(play, row, "denied", reason="no", by="key_carol"),
            decide(play, row, arguments={"i": 9}, by="key_dave"),
        ]
        codes = await both(*people[turn % 3 :], *people[: turn % 3])
        assert sorted(codes, key=str) == ["APPROVAL_DECIDED", "APPROVAL_DECIDED", None]
    decided = [e for e in await play.events(run_id) if e["type"] == "approval.decided"]
    assert len(decided) == 2
    assert (await play.read(run_id)).state.status is Status.QUEUED
    await play.check_whole(run_id)


@pytest.mark.parametrize("turn", range(6))
async def test_a_decision_and_its_expiry_one_wins(play, db, turn):
    """The look and the click come at the moment at which the time is over."""
    from harness_worker.scheduler.service import tick
    from harness_worker.scheduler.wake import WakeLoop
    from tests.worker.runtime import make_shared

    shared = await make_shared(db)
    run_id = await waiting(play, asks(0, in_s=0.12 + turn * 0.002))
    (row,) = await rows(play, run_id)
    await asyncio.sleep(0.1)

    async def expire():
        for _ in range(200):
            await tick(shared, [WakeLoop(shared)])
            if (await play.read(run_id)).state.status is not Status.WAITING_APPROVAL:
                return

    code, _ = await both(decide(play, row), expire())
    (after,) = await rows(play, run_id)
    (call,) = await play.calls(run_id)
    if code is None:
        assert (after["status"], call["status"]) == ("approved", "awaiting_approval")
    else:
        assert code == "APPROVAL_EXPIRED"
        await expire()
        (after,), (call,) = await rows(play, run_id), await play.calls(run_id)
        assert (after["status"], call["status"]) == ("expired", "rejected")
    assert (await play.read(run_id)).state.status is Status.QUEUED
    types = [e["type"] for e in await play.events(run_id)]
    assert types.count("approval.decided") + types.count("approval.expired") == 1
    await play.check_whole(run_id)


@pytest.mark.parametrize("turn", range(6))
async def test_a_decision_and_a_cancel_one_wins(play, db, turn):
    run_id = await waiting(play, asks(0), asks(1))
    row = (await rows(play, run_id))[0]
    pair = [
        decide(play, row),
        cancel_run(db, play.tenant_id, run_id, by="ann"),
    ]
    order = pair if turn % 2 else pair[::-1]
    codes = await both(*order)
    code = codes[order.index(pair[0])]
    assert code in {None, "APPROVAL_CANCELLED", "RUN_STOPPING"}
    assert [r["status"] for r in await rows(play, run_id)] == ["cancelled", "cancelled"]
    assert (await play.read(run_id)).state.status is Status.CANCELLED
    await play.check_whole(run_id)


async def test_one_call_has_one_open_approval(play, db):
    run_id = await waiting(play, asks(0))
    with pytest.raises(Exception, match="approvals_open_idx"):
        await sql(
            db,
            "INSERT INTO approvals (tenant_id, run_id, step, idx, digest, status) "
            "SELECT tenant_id, run_id, step, idx, digest, 'approved' FROM approvals "
            "WHERE run_id = :r",
            r=run_id,
        )
