"""What people do to runs: pause, answer, approve; each once, in order, under the run's lock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from harness_common.commands import (
    Approver,
    Decide,
    answer_run,
    cancel_run,
    decide_approval,
    pause_run,
    resume_run,
    steer_run,
)
from harness_common.core.approval import ApprovalStatus, digest
from harness_common.core.errors import Conflict, Denied, HarnessError, Invalid
from harness_common.core.guidance import Guidance
from harness_common.core.handoff import ACTING
from harness_common.core.run import Status
from harness_common.core.step import CallOutcome, ToolsDone, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from harness_common.store.approvals import Said, decide_in, list_approvals
from harness_common.store.audit import Actor
from harness_common.store.effects import CallKey, read_call
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.wake import WakeLoop
from tests.conformance_store.board import tick_all
from tests.store.approval_play import asks, waiting
from tests.store.play import ran, say, waiting_until

BOB = Approver(Actor("key_bob"), "approver")


def question(*, in_s=3600.0, choices=()):
    until = datetime.now(UTC) + timedelta(seconds=in_s)
    wait = Wait(0, "input", until, {"question": "which?", "choices": list(choices)})
    call = CallOutcome(0, "call_0", "ask_user", CallStatus.RUNNING, "", resume_at=until, wait=wait)
    return ToolsWaiting((call,))


async def turn(play):
    """Let the scheduler wake and admit what is due."""
    shared = await play.shared()
    return await tick_all(shared, [WakeLoop(shared), AdmitLoop(shared)])


# ── pause, steer, answer ─────────────────────────────────────────────────────────────────────────


async def test_a_pause_takes_hold_after_the_step_under_way(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    await pause_run(play.db, play.tenant_id, run_id, by="ann")
    assert not (await pause_run(play.db, play.tenant_id, run_id, by="ann")).changed
    applied = await play.settle(run, say(tools=["look"]))
    assert (applied.run.state.status, applied.run.state.step) == (Status.PAUSED, 1)
    assert await play.running() == 0
    await turn(play)
    assert await play.status(run_id) is Status.PAUSED
    await resume_run(play.db, play.tenant_id, run_id, by="ann")
    await turn(play)
    await play.step(run_id, ran("ok"))
    await play.step(run_id, say())
    assert await play.status(run_id) is Status.SUCCEEDED
    await play.check_whole(run_id)


async def test_what_is_said_to_a_run_is_kept_in_order_and_numbered(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    await asyncio.gather(
        *(steer_run(play.db, play.tenant_id, run_id, text=f"{n}", by="ann") for n in range(5))
    )
    stored = await play.read(run_id)
    assert stored.last_input_n == 5
    assert sorted(stored.state.memo["steer"]) == [str(n) for n in range(5)]
    assert stored.version == run.version, "an outside input does not touch the version"
    await play.settle(run, say(tools=["look"]))
    await play.step(run_id, ran("ok"))
    told = [m.content[0].text for m in (await play.messages(run_id)) if m.role == "user"][1:]
    assert told == list(stored.state.memo["steer"])
    await play.check_whole(run_id)


async def test_a_question_waits_for_its_answer(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["ask_user"]))
    await play.step(run_id, question(choices=["red", "blue"]))
    assert await play.status(run_id) is Status.WAITING_INPUT
    assert await play.running() == 0
    with pytest.raises(Invalid, match="none of the choices"):
        await answer_run(play.db, play.tenant_id, run_id, text="green", call=None, by="ann")
    answered = await asyncio.gather(
        *(
            answer_run(play.db, play.tenant_id, run_id, text=text, call="2.0", by="ann")
            for text in ("red", "blue")
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(one, HarnessError) for one in answered) == 1
    await turn(play)
    assert await play.status(run_id) is Status.RUNNING
    claimed = await play.try_claim(run_id, (await play.read(run_id)).version)
    assert claimed.calls[0]["status"] == "succeeded"
    assert claimed.calls[0]["result"] in {"red", "blue"}
    assert (await play.types(run_id)).count("run.input_given") == 1


async def test_a_question_that_nobody_answers_expires(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["ask_user"]))
    await play.step(run_id, question(in_s=-1))
    await turn(play)
    assert await play.status(run_id) is Status.RUNNING


async def test_a_time_that_has_come_wakes_and_one_that_has_not_does_not(play):
    ids = []
    for in_s in (-1, 3600):
        run_id = await play.start()
        await play.step(run_id, say(tools=["look"]))
        until = datetime.now(UTC) + timedelta(seconds=in_s)
        await play.step(run_id, waiting_until(until))
        ids.append(run_id)
    await turn(play)
    assert [await play.status(i) for i in ids] == [Status.RUNNING, Status.DELAYED]
    (look,) = await play.db.fetch("look", {"lease_s": 60.0})
    assert look["due_in_s"] <= 3600
    for run_id in ids:
        await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert {await play.status(i) for i in ids} == {Status.CANCELLED}
    assert await play.running() == 0


# ── approvals ────────────────────────────────────────────────────────────────────────────────────


async def pending(play, run_id):
    return await list_approvals(play.db, play.tenant_id, run_id=run_id, limit=10)


async def decide(play, row, verdict="approved", *, shown=None, approver=BOB, **more):
    said = Decide(verdict, shown or row["digest"], **more)
    return await decide_approval(play.db, play.tenant_id, row["id"], said, approver=approver)


async def use(play, run, row, **changed):
    """Use a person's yes, as the step does just before the call."""
    return await play.statement(
        "approval_use",
        **{
            "run_id": run.id, "step": 2, "idx": row["idx"], "version": run.version,
            "fence": run.fence, "claim_id": run.claim_id, "approval_id": row["id"],
            "digest": row["digest"], "tool_version": row["tool_version"],
        }
        | changed,
    )  # fmt: skip


async def approved(play):
    """Play a run to where its one call is approved and its owner at work; return both."""
    run_id = await waiting(play, asks(0))
    (row,) = await pending(play, run_id)
    await decide(play, row)
    await turn(play)
    return await play.claim(run_id), row


async def test_a_yes_is_used_once_and_by_the_owner(play):
    run, row = await approved(play)
    assert await use(play, run, row, fence=run.fence + 1) == []
    assert await use(play, run, row, claim_id=uuid4()) == []
    used = await asyncio.gather(*(use(play, run, row) for _ in range(5)))
    assert sum(bool(one) for one in used) == 1
    (after,) = await pending(play, run.id)
    assert after["status"] == "used"


async def test_a_yes_is_for_exactly_what_was_shown(play):
    run, row = await approved(play)
    assert await use(play, run, row, digest=digest("pay", {"i": 1})) == []
    assert await use(play, run, row, tool_version="2") == []
    assert await use(play, run, row, idx=1) == []
    assert await use(play, run, row)


async def test_a_yes_is_not_used_after_a_cancel(play):
    run, row = await approved(play)
    await cancel_run(play.db, play.tenant_id, run.id, by="ann")
    assert await use(play, run, row) == []


async def test_of_two_people_one_decides(play):
    run_id = await waiting(play, asks(0))
    (row,) = await pending(play, run_id)
    said = await asyncio.gather(
        decide(play, row, "approved"), decide(play, row, "denied"), return_exceptions=True
    )
    assert sum(isinstance(one, Conflict) for one in said) == 1
    (after,) = await pending(play, run_id)
    assert after["status"] in {"approved", "denied"}
    assert after["decided_by"] == "key_bob"
    types = await play.types(run_id)
    assert types.count("approval.decided") == 1
    await play.check_whole(run_id)


async def test_a_decision_names_what_was_shown(play):
    run_id = await waiting(play, asks(0))
    (row,) = await pending(play, run_id)
    with pytest.raises(Conflict, match="not those that you were shown"):
        await decide(play, row, shown=digest("pay", {"i": 9}))
    with pytest.raises(Denied):
        await decide(play, row, approver=Approver(Actor("key_v"), "viewer"))
    assert (await pending(play, run_id))[0]["status"] == "pending"
    _, asked = await decide(play, row)
    _, again = await decide(play, row)
    assert (asked.changed, again.changed) == (True, False)


async def test_changed_arguments_are_what_is_approved(play):
    run_id = await waiting(play, asks(0))
    (row,) = await pending(play, run_id)
    await decide(play, row, arguments={"i": 7})
    (after,) = await pending(play, run_id)
    assert after["arguments"] == {"i": 7}
    assert after["digest"] == digest("pay", {"i": 7})
    assert (after["original_arguments"], after["original_digest"]) == ({"i": 0}, row["digest"])
    assert after["edited_by"] == "key_bob"
    await turn(play)
    run = await play.claim(run_id)
    assert await use(play, run, row) == [], "the arguments first shown"
    assert await use(play, run, after)


async def test_an_approval_expires(play):
    run_id = await waiting(play, asks(0, in_s=-1))
    (row,) = await pending(play, run_id)
    with pytest.raises(Conflict, match="time was over"):
        await decide(play, row)
    await turn(play)
    (row,) = await pending(play, run_id)
    assert row["status"] == "expired"
    assert await play.status(run_id) is Status.RUNNING


async def test_a_decision_after_its_time_is_not_written(play):
    """Whatever whoever decides has read, the store compares its own time."""
    run_id = await waiting(play, asks(0, in_s=-1))
    (row,) = await pending(play, run_id)
    said = Said(ApprovalStatus.APPROVED, "key_bob", "approver", "", row["digest"])
    async with play.db.tenant_transaction(play.tenant_id) as conn:
        assert not await decide_in(conn, row, said, 5)
        assert not await decide_in(conn, row | {"digest": "other"}, said, 5)
    (row,) = await pending(play, run_id)
    assert row["status"] == "pending"


async def test_the_end_of_a_run_closes_its_approvals(play):
    run_id = await waiting(play, asks(0), asks(1))
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert {row["status"] for row in await pending(play, run_id)} == {"cancelled"}
    assert {c["status"] for c in await play.calls(run_id)} == {"cancelled"}
    (row, _) = await pending(play, run_id)
    with pytest.raises(Conflict):
        await decide(play, row)


async def test_an_approval_and_an_effect_name_who_acts_after_a_hand_off(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["transfer_to_b"]))
    done = ran("b goes on")
    handed = Guidance((), (), {ACTING: ["b", 1, 1]})
    await play.step(run_id, ToolsDone(done.outcomes, handed))
    await play.step(run_id, say(tools=["pay"]))
    await play.step(run_id, ToolsWaiting((asks(0, step=4),)))
    (row,) = await pending(play, run_id)
    assert (row["agent_name"], row["acting_name"]) == ("a", "b")
    (row,) = await play.statement("approvals_inbox", before=None, limit=10)
    assert row["acting_name"] == "b"
    read = await read_call(play.db, play.tenant_id, CallKey(run_id, 4, 0))
    assert (read["agent_name"], read["acting_name"]) == ("a", "b")
    other = await waiting(play, asks(0))
    (row,) = await pending(play, other)
    assert row["acting_name"] == "a"


async def test_a_call_that_is_asked_about_anew_voids_what_was_said(play):
    run, row = await approved(play)
    await play.settle(run, ToolsWaiting((asks(0),)))
    rows = await pending(play, run.id)
    assert [r["status"] for r in rows] == ["pending", "void"] or {r["status"] for r in rows} == {
        "pending",
        "void",
    }
    assert next(r for r in rows if r["id"] == row["id"])["status"] == "void"
    inbox = await play.statement("approvals_inbox", before=None, limit=10)
    assert [r["status"] for r in inbox] == ["pending"]
