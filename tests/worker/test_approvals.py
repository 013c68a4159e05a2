"""Approvals as a worker, a scheduler and people play them over a real Postgres (INV19)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from harness_common.commands import cancel_run, fork_run, retry_run
from harness_common.commands.effects import resolve_effect
from harness_common.commands.fork import ForkRun
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec, WaitUntil
from harness_common.core import events as ev
from harness_common.core.approval import digest
from harness_common.core.errors import Conflict, Denied, Invalid
from harness_common.core.inputs import OwnerLost
from harness_common.core.policy import Decision, Verdict
from harness_common.core.run import Status
from harness_common.core.step import ToolsDone, ToolsWaiting
from harness_common.core.tool_call import CallStatus
from harness_common.store.audit import Actor
from harness_common.store.effects import CallKey, Resolution
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.steps import tools as tools_step
from harness_worker.steps.tools import scope_of
from harness_worker.tools.call import CancelAsked, PendingCall
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.runner import ToolRunner
from tests.store.play import say, sql
from tests.worker.approvals import AskGate, Desk, Made, ask
from tests.worker.runtime import claim_tools_step, make_runtime


def types(events):
    return [e["type"] for e in events]


async def test_a_call_waits_for_a_person_and_is_made_once(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    waiting = await desk.work()
    assert waiting.run.state.status is Status.WAITING_APPROVAL
    assert waiting.run.claim_id is None
    assert await play.running() == 0, "no slot is held"
    (row,) = await desk.rows()
    assert row["status"] == "pending"
    assert row["arguments"] == {"i": 0}
    assert row["digest"] == digest("pay", {"i": 0})
    assert (row["tool"], row["tool_version"], row["effect"]) == ("pay", "1", "write")
    assert row["started_by"] == "key_ann"
    assert row["shown"]["provenance"]["step"] == 1
    assert row["shown"]["reasons"] == ["the risk of pay is high"]
    assert json.loads(row["shown"]["preview"]["text"]) == {"i": 0}
    (call,) = await play.calls(desk.run_id)
    assert (call["status"], call["attempt"], call["started_at"]) == ("awaiting_approval", 0, None)
    await desk.decide(row)
    assert made.calls == []
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 0)]
    (row,) = await desk.rows()
    assert row["status"] == "used"
    assert row["used_at"] is not None
    assert await desk.told() == [("succeeded", None, "pay 0")]
    told = types(await play.events(desk.run_id))
    assert told.index(ev.APPROVAL_REQUESTED) < told.index(ev.RUN_WAITING)
    assert told.index(ev.APPROVAL_DECIDED) < told.index(ev.TOOL_STARTED)
    await play.check_whole(desk.run_id)
    (audit,) = await sql(db, "SELECT * FROM audit WHERE action = 'approval.approve'")
    assert (audit["actor"], audit["detail"]["call"]) == ("key_bob", "2.0")


async def test_a_denial_is_told_with_its_reason_and_nothing_is_run(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    (row,) = await desk.rows()
    await desk.decide(row, "denied", reason="not this customer")
    await desk.admit()
    done = await desk.work()
    assert made.calls == []
    assert done.run.state.next_kind == "model"
    ((status, error, text),) = await desk.told()
    assert (status, error) == ("rejected", "APPROVAL_DENIED")
    assert "not this customer" in text
    assert "not this customer" in (await play.messages(desk.run_id))[-1].content[0].content


async def test_changed_arguments_are_used_and_the_model_is_told(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    (row,) = await desk.rows()
    with pytest.raises(Invalid, match=r"arguments\.i") as caught:
        await desk.decide(row, arguments={"i": 1000})
    assert caught.value.detail["field"] == "arguments.i"
    with pytest.raises(Invalid, match="arguments"):
        await desk.decide(row, arguments={"i": 1, "also": "this"})
    await desk.decide(row, arguments={"i": 7})
    (row,) = await desk.rows()
    assert (row["arguments"], row["original_arguments"]) == ({"i": 7}, {"i": 0})
    assert row["digest"] == digest("pay", {"i": 7})
    assert row["original_digest"] == digest("pay", {"i": 0})
    assert row["edited_by"] == "key_bob"
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 7)]
    ((status, _, text),) = await desk.told()
    assert status == "succeeded"
    assert text == '[a person changed the arguments to {"i": 7}]\npay 7'


async def test_what_a_person_changed_stays_changed_when_it_is_run_again(play, db):
    """Nobody approved what the model had asked for at first."""
    made = Made()
    tool = made.tool()

    async def breaks_at_first(ctx, i):
        made.calls.append(("pay", i))
        if len(made.calls) == 1:
            raise RuntimeError("nobody knows")
        return f"pay {i}"

    desk = await Desk.open(play, db, [replace(tool, fn=breaks_at_first)], ["pay"])
    await desk.work()
    (row,) = await desk.rows()
    await desk.decide(row, arguments={"i": 7})
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 7)]
    assert [status for status, _, _ in await desk.told()] == ["unknown"]
    again = Resolution("run_again", "key_bob", "it did not happen")
    await resolve_effect(db, play.tenant_id, CallKey(desk.run_id, 2, 0), again, actor=Actor("bob"))
    await desk.admit()
    await desk.work()
    (row,) = await desk.rows("pending")
    assert row["arguments"] == {"i": 7}, "asked anew, about what is to be run"
    await desk.decide(row)
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 7), ("pay", 7)]
    ((status, _, text),) = await desk.told()
    assert (status, text) == ("succeeded", '[a person changed the arguments to {"i": 7}]\npay 7')


async def test_other_calls_go_on_first_and_several_are_answered_in_any_order(play, db):
    made = Made()
    look = made.tool("look", EffectClass.READ, risk="low")
    desk = await Desk.open(play, db, [made.tool(), look], ["pay", "look", "pay", "pay"])
    await desk.work()
    assert made.calls == [("look", 1)], "what needs nobody does not wait"
    rows = await desk.rows()
    assert [r["idx"] for r in rows] == [0, 2, 3]
    await desk.decide(rows[2], "denied", reason="no")
    await desk.decide(rows[1], arguments={"i": 20})
    assert await desk.status() is Status.WAITING_APPROVAL, "one is still open"
    await desk.decide(rows[0])
    await desk.admit()
    done = await desk.work()
    assert done.run.state.next_kind == "model"
    assert made.calls == [("look", 1), ("pay", 0), ("pay", 20)]
    assert [t[0] for t in await desk.told()] == ["succeeded", "succeeded", "succeeded", "rejected"]


async def test_an_idempotent_call_uses_its_approval_before_it_is_made(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool("put", EffectClass.IDEMPOTENT)], ["put"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    ctx, result = await desk.attempt()
    assert isinstance(result, ToolsDone)
    assert [r["status"] for r in await desk.rows()] == ["used"]
    # The process dies before the step's commit: the yes is used up, a person is asked anew.
    await play.settle(ctx.run, OwnerLost("w", "killed"))
    again = await desk.work()
    assert again.run.state.status is Status.WAITING_APPROVAL
    assert made.calls == [("put", 0)]
    assert [r["status"] for r in await desk.rows()] == ["used", "pending"]


async def test_a_crash_after_the_intent_leaves_an_unknown_effect_and_no_second_use(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    call = PendingCall.from_row(ctx.calls[0])
    intent = _intent(ctx, call, (await desk.rows())[0])
    assert await db.fetch("call_intent", intent)
    assert [r["status"] for r in await desk.rows()] == ["used"]
    await play.settle(ctx.run, OwnerLost("w", "killed"))
    lost = await desk.work()
    assert lost.run.state.waiting["for"] == "unknown_effect"
    assert made.calls == []
    # A person says that it may be run again; that is another call, and needs another yes.
    await sql(db, "UPDATE tool_calls SET status = 'proposed', attempt_id = NULL WHERE run_id = :r",
              r=desk.run_id)  # fmt: skip
    await sql(db, "UPDATE runs SET status = 'queued', waiting = NULL WHERE id = :r", r=desk.run_id)
    await desk.admit()
    again = await desk.work()
    assert again.run.state.waiting["for"] == "approval"
    assert made.calls == []


def _intent(ctx, call, row, **more):
    run = ctx.run
    return {
        "tenant_id": run.tenant_id, "run_id": run.id, "step": ctx.number, "idx": call.index,
        "version": run.version, "fence": run.fence, "claim_id": run.claim_id,
        "attempt_id": uuid4(), "prior_attempt_id": call.attempt_id,
        "from_status": [str(call.status)], "effect": "write", "tool_version": "1",
        "policy": None, "ran_arguments": None, "served_by": None,
        "fingerprint": "f", "payload": "{}", "approval_id": row["id"],
        "approval_digest": row["digest"], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"approval_digest": digest("pay", {"i": 1})},
        {"tool_version": "2"},
        {"approval_id": uuid4()},
        {"idx": 1},
    ],
)
async def test_no_intent_without_exactly_the_approval_of_the_call(play, db, wrong):
    desk = await Desk.open(play, db, [Made().tool()], ["pay", "pay"])
    await desk.work()
    for row in await desk.rows():
        await desk.decide(row)
    await desk.admit()
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    call, row = PendingCall.from_row(ctx.calls[0]), (await desk.rows())[0]
    assert not await db.fetch("call_intent", _intent(ctx, call, row, **wrong))
    assert [r["status"] for r in await desk.rows()] == ["approved", "approved"]
    assert await db.fetch("call_intent", _intent(ctx, call, row))
    again = PendingCall.from_row({**ctx.calls[0], "status": "proposed"})
    await sql(db, "UPDATE tool_calls SET status = 'proposed', attempt_id = NULL WHERE run_id = :r",
              r=desk.run_id)  # fmt: skip
    assert not await db.fetch("call_intent", _intent(ctx, again, row)), "it is used"
    assert [r["status"] for r in await desk.rows()] == ["used", "approved"]
    await play.check_whole(desk.run_id)


async def test_two_workers_with_one_approval_make_one_intent(play, db):
    desk = await Desk.open(play, db, [Made().tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    call, row = PendingCall.from_row(ctx.calls[0]), (await desk.rows())[0]
    won = await asyncio.gather(
        *(db.fetch("call_intent", _intent(ctx, call, row)) for _ in range(8))
    )
    assert sum(map(bool, won)) == 1


async def test_two_uses_of_one_approval_by_a_call_without_an_intent(play, db):
    desk = await Desk.open(play, db, [Made().tool("put", EffectClass.IDEMPOTENT)], ["put"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    row = (await desk.rows())[0]
    use = {
        "tenant_id": ctx.run.tenant_id, "run_id": ctx.run.id, "step": 2, "idx": 0,
        "version": ctx.run.version, "fence": ctx.run.fence, "claim_id": ctx.run.claim_id,
        "approval_id": row["id"], "digest": row["digest"], "tool_version": "1",
    }  # fmt: skip
    for wrong in ({"claim_id": uuid4()}, {"digest": "0"}, {"tool_version": "2"}, {"idx": 1}):
        assert not await db.fetch("approval_use", use | wrong)
    won = await asyncio.gather(*(db.fetch("approval_use", use) for _ in range(8)))
    assert sum(map(bool, won)) == 1


async def test_a_stopping_run_uses_no_approval(play, db):
    """INV9: nothing new after a cancel."""
    made = Made()
    desk = await Desk.open(play, db, [made.tool("put", EffectClass.IDEMPOTENT)], ["put"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    await cancel_run(db, play.tenant_id, desk.run_id, by="ann")
    with pytest.raises(CancelAsked):
        await tools_step.run(ctx)
    assert made.calls == []


# ── what an approval is bound to ─────────────────────────────────────────────────────────────────


async def test_another_version_of_the_tool_is_asked_about_anew(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    first = (await desk.rows())[0]
    await desk.decide(first)
    desk.runtime.catalog = Catalog(ToolRegistry([made.tool(version="2")]))
    await desk.admit()
    again = await desk.work()
    assert again.run.state.status is Status.WAITING_APPROVAL
    assert made.calls == []
    old, new = await desk.rows()
    assert (old["status"], new["status"], new["tool_version"]) == ("void", "pending", "2")
    with pytest.raises(Conflict) as caught:
        await desk.decide(old, "denied", reason="x")
    assert caught.value.error_code == "APPROVAL_VOID"
    await desk.decide(new)
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 0)]


async def run_with(desk, rule):
    """Run the step's calls by a policy of the test's own."""
    ctx = await claim_tools_step(desk.runtime, desk.play, desk.run_id)
    scope = await scope_of(ctx)
    runner = ToolRunner(scope, AskGate(scope, rule))
    outcomes = tuple([await runner.run(PendingCall.from_row(row)) for row in ctx.calls])
    waits = any(o.wait for o in outcomes)
    return await desk.play.settle(ctx.run, ToolsWaiting(outcomes) if waits else ToolsDone(outcomes))


async def test_another_version_of_the_policy_is_asked_about_anew(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await run_with(desk, lambda _: ask(policy_version="1", rule="r", reasons=("why",)))
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    await run_with(desk, lambda _: ask(policy_version="2"))
    assert [r["status"] for r in await desk.rows()] == ["void", "pending"]
    assert made.calls == []
    await desk.decide((await desk.rows("pending"))[0])
    await desk.admit()
    await run_with(desk, lambda _: ask(policy_version="2"))
    assert made.calls == [("pay", 0)]


async def test_arguments_that_changed_under_an_approval_are_asked_about_anew(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await sql(db, "UPDATE tool_calls SET arguments = '{\"i\": 9}' WHERE run_id = :r",
              r=desk.run_id)  # fmt: skip
    await desk.admit()
    await desk.work()
    assert made.calls == []
    assert [r["status"] for r in await desk.rows()] == ["void", "pending"]


async def test_an_approval_whose_stored_arguments_were_changed_is_void(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await sql(db, "UPDATE approvals SET arguments = '{\"i\": 99}' WHERE run_id = :r",
              r=desk.run_id)  # fmt: skip
    await desk.admit()
    await desk.work()
    assert made.calls == []


async def test_a_policy_that_denies_at_last_wins_over_a_yes(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    await desk.admit()
    done = await run_with(desk, lambda _: Decision(Verdict.DENY, ("frozen",)))
    assert done.run.state.next_kind == "model"
    assert made.calls == []
    assert [r["status"] for r in await desk.rows()] == ["void"], "nothing stays open"


async def test_a_persons_no_and_changes_stand_when_policy_no_longer_asks(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay", "pay"])
    await desk.work()
    first, second = await desk.rows()
    await desk.decide(first, arguments={"i": 5})
    await desk.decide(second, "denied", reason="no")
    await desk.admit()
    await run_with(desk, lambda _: Decision(Verdict.ALLOW))
    assert made.calls == [("pay", 5)]


async def test_who_changes_arguments_cannot_approve_beyond_their_own_role(play, db):
    """A small sum is an approver's; making it large asks an admin, and never the same person."""
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])

    def rule(arguments):
        return ask() if arguments["i"] < 50 else ask(approver_roles=("admin",))

    await run_with(desk, rule)
    await desk.decide((await desk.rows())[0], arguments={"i": 60})
    await desk.admit()
    again = await run_with(desk, rule)
    assert again.run.state.status is Status.WAITING_APPROVAL
    assert made.calls == []
    (new,) = await desk.rows("pending")
    assert (new["arguments"], new["original_arguments"]) == ({"i": 60}, {"i": 0})
    assert new["edited_by"] == "key_bob"
    with pytest.raises(Denied):
        await desk.decide(new)
    await desk.decide(new, by="key_carol", role="admin")
    await desk.admit()
    await run_with(desk, rule)
    assert made.calls == [("pay", 60)]


async def test_policy_may_forbid_what_arguments_were_changed_to(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    denied = Decision(Verdict.DENY, ("too much",))

    def rule(arguments):
        return ask() if arguments["i"] < 50 else denied

    await run_with(desk, rule)
    await desk.decide((await desk.rows())[0], arguments={"i": 60})
    await desk.admit()
    await run_with(desk, rule)
    assert made.calls == []
    assert (await desk.told())[0][:2] == ("rejected", "PERMISSION_DENIED")


async def test_changed_arguments_are_checked_again_by_the_worker(play, db):
    """The schema that the API had is that of the question; the tool's own decides."""
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await sql(db, "UPDATE approvals SET input_schema = '{}' WHERE run_id = :r", r=desk.run_id)
    await desk.decide((await desk.rows())[0], arguments={"i": 1000})
    await desk.admit()
    await desk.work()
    assert made.calls == []
    assert (await desk.told())[0][:2] == ("rejected", "ARGUMENTS_INVALID")


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_nobody_decides_in_time_is_told_and_the_rest_goes_on_waiting(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay", "pay"])
    await desk.work()
    first, second = await desk.rows()
    await desk.expire(first)
    with pytest.raises(Conflict) as caught:
        await desk.decide(first)
    assert caught.value.error_code == "APPROVAL_EXPIRED", "Postgres time, not the scheduler's tick"
    await tick(desk.shared, [WakeLoop(desk.shared)])
    assert [r["status"] for r in await desk.rows()] == ["expired", "pending"]
    assert await desk.status() is Status.WAITING_APPROVAL
    assert (await desk.told())[0][:2] == ("rejected", "APPROVAL_EXPIRED")
    run = await play.read(desk.run_id)
    assert run.state.not_before == second["expires_at"]
    await desk.decide(second)
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 1)]
    assert ev.APPROVAL_EXPIRED in types(await play.events(desk.run_id))
    await play.check_whole(desk.run_id)


async def test_an_early_look_changes_nothing_and_sets_when_to_look_again(play, db):
    """After a decision the earliest expiry may lie later than the look that was due."""
    desk = await Desk.open(play, db, [Made().tool()], ["pay"])
    await desk.work()
    await sql(db, "UPDATE runs SET wake_at = clock_timestamp() WHERE id = :r", r=desk.run_id)
    await tick(desk.shared, [WakeLoop(desk.shared)])
    assert await desk.status() is Status.WAITING_APPROVAL
    (row,) = await sql(db, "SELECT wake_at, not_before FROM runs WHERE id = :r", r=desk.run_id)
    assert row["wake_at"] == row["not_before"] == (await desk.rows())[0]["expires_at"]
    assert desk.shared.skipped() == []


async def test_a_call_that_waits_for_a_time_wakes_the_run_and_the_question_stays(play, db):
    made = Made()

    async def nap(ctx, i):
        return "rested" if ctx.resumed else WaitUntil(datetime.now(UTC) + timedelta(seconds=0.2))

    schema = {"type": "object", "properties": {"i": {"type": "integer"}}}
    napping = Tool(ToolSpec("nap", "Naps.", schema, EffectClass.IDEMPOTENT), nap)
    desk = await Desk.open(play, db, [made.tool(), napping], ["pay", "nap"])
    first = await desk.work()
    assert first.run.state.status is Status.WAITING_APPROVAL
    await asyncio.sleep(0.25)
    await desk.admit()
    # Decided while a worker is at the step: the decision is not lost, nor is the finished call.
    ctx = await claim_tools_step(desk.runtime, play, desk.run_id)
    result = await tools_step.run(ctx)
    assert isinstance(result, ToolsWaiting)
    await desk.decide((await desk.rows())[0])
    applied = await play.settle(ctx.run, result)
    assert applied.run.state.status is Status.QUEUED
    await desk.admit()
    await desk.work()
    assert made.calls == [("pay", 0)]
    assert [t[2] for t in await desk.told()] == ["pay 0", "rested"]
    asked = [e for e in await play.events(desk.run_id) if e["type"] == ev.APPROVAL_REQUESTED]
    assert len(asked) == 1, "the same question is asked once"


@pytest.mark.parametrize("effect", [EffectClass.WRITE, EffectClass.IDEMPOTENT])
async def test_a_call_that_was_begun_and_waits_needs_no_second_approval(play, db, effect):
    handed_in = []

    async def submit(ctx, i):
        if ctx.resumed:
            return f"done {i}"
        handed_in.append(i)
        return WaitUntil(datetime.now(UTC) + timedelta(seconds=0.1))

    schema = {"type": "object", "properties": {"i": {"type": "integer"}}}
    job = Tool(ToolSpec("job", "Works.", schema, effect, risk="high"), submit)
    desk = await Desk.open(play, db, [job], ["job"])
    await desk.work()
    await desk.decide((await desk.rows())[0], arguments={"i": 3})
    await desk.admit()
    waiting = await desk.work()
    assert waiting.run.state.status is Status.DELAYED
    await asyncio.sleep(0.15)
    await desk.admit()
    await desk.work()
    assert handed_in == [3]
    assert len(await desk.rows()) == 1
    assert (await desk.told())[0][2].endswith("done 3")


# ── cancel, fork, retry ──────────────────────────────────────────────────────────────────────────


async def test_a_cancel_closes_what_is_open(play, db):
    desk = await Desk.open(play, db, [Made().tool()], ["pay", "pay"])
    await desk.work()
    first, second = await desk.rows()
    await desk.decide(first)
    await cancel_run(db, play.tenant_id, desk.run_id, by="ann")
    assert [r["status"] for r in await desk.rows()] == ["cancelled", "cancelled"]
    assert [c["status"] for c in await play.calls(desk.run_id)] == ["cancelled", "cancelled"]
    with pytest.raises(Conflict):
        await desk.decide(second)


async def test_a_cancel_while_the_question_is_put_asks_nothing(play, db):
    desk = await Desk.open(play, db, [Made().tool()], ["pay"])
    ctx, result = await desk.attempt()
    await cancel_run(db, play.tenant_id, desk.run_id, by="ann")
    applied = await play.settle(ctx.run, result)
    assert applied.run.state.status is Status.CANCELLED
    assert await desk.rows() == []
    assert [c["status"] for c in await play.calls(desk.run_id)] == ["cancelled"]


async def test_a_fork_and_a_retry_inherit_no_approval(play, db):
    made = Made()
    desk = await Desk.open(play, db, [made.tool()], ["pay"])
    await desk.work()
    await desk.decide((await desk.rows())[0])
    forked = (await fork_run(db, play.tenant_id, desk.run_id, ForkRun())).run_id
    await cancel_run(db, play.tenant_id, desk.run_id, by="ann")
    again = (await retry_run(db, play.tenant_id, desk.run_id, created_by="ann")).run_id
    for run_id in (forked, again):
        other = replace(desk, run_id=run_id)
        if await other.status() is Status.QUEUED:
            await other.admit()
        waiting = await other.work()
        assert waiting.run.state.status is Status.WAITING_APPROVAL
        assert [r["status"] for r in await other.rows()] == ["pending"]
    assert made.calls == []


# ── what a person is shown ───────────────────────────────────────────────────────────────────────


async def test_a_tool_may_offer_a_preview_and_a_broken_one_stops_nothing(play, db):
    made = Made()

    def diff(arguments):
        return f"- 0\n+ {arguments['i']}"

    async def broken(arguments):
        raise KeyError("no")

    tools = [
        made.tool("a", meta={"preview": diff}),
        made.tool("b", meta={"preview": broken}),
        made.tool("c", meta={"preview": lambda _: "x" * 30_000}),
    ]
    desk = await Desk.open(play, db, tools, ["a", "b", "c"])
    await desk.work()
    a, b, c = (row["shown"]["preview"] for row in await desk.rows())
    assert a == {"kind": "tool", "text": "- 0\n+ 0"}
    assert (b["kind"], b["failed"]) == ("arguments", "KeyError")
    assert len(c["text"]) < 21_000
    assert "10000 more characters" in c["text"]


async def test_who_started_a_child_is_who_started_the_first_run(play, db):
    runtime = await make_runtime(db, tools=[Made().tool()])
    desk = await Desk.open(play, db, [Made().tool()], ["pay"])
    child = await play.start(created_by="run_x")
    await sql(db, "UPDATE runs SET parent_run_id = :p, parent_step = 2, parent_idx = 0 "
              "WHERE id = :c", p=desk.run_id, c=child)  # fmt: skip
    await play.step(child, say(tools=["pay"]))
    ctx = await claim_tools_step(runtime, play, child)
    row = await db.fetch_one("approval_seek", (await scope_of(ctx)).key(0))
    assert row["started_by"] == "key_ann"


async def test_content_from_outside_is_shown_as_such(play, db):
    desk = await Desk.open(play, db, [Made().tool()], ["pay"])
    await sql(db, "UPDATE messages SET trust = 'untrusted' WHERE run_id = :r AND n = 1",
              r=desk.run_id)  # fmt: skip
    await desk.work()
    assert (await desk.rows())[0]["shown"]["provenance"]["tainted"] is True
    assert CallStatus((await play.calls(desk.run_id))[0]["status"]) is CallStatus.AWAITING_APPROVAL
