"""Budgets, children and waits as a worker plays them, where they meet."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness_common.commands import ForkRun, cancel_run, fork_run, retry_run, steer_run
from harness_common.contracts.tool import AskUser, EffectClass, StartChild, WaitUntil
from harness_common.core.budget import Limits
from harness_common.core.errors import Limited, UnknownOutcome
from harness_common.core.inputs import StepFailed
from harness_common.core.run import Status
from harness_common.core.step import Failure, ToolsDone, ToolsUnknown, ToolsWaiting
from harness_common.store.connection import run_sql
from harness_worker.advance import answer
from harness_worker.budgets import PLATFORM, reserve
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.steps import tools
from tests.store.play import WHEN, ran, say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_shared, make_tool


class NoPrices:
    """Every model is free."""

    def cost_usd(self, name: str, usage: object) -> float:
        del name, usage
        return 0.0


def priced(runtime):
    models: Any = runtime.models
    models.prices = NoPrices()
    return runtime


async def limit(play, tokens):
    await sql(play.db, "UPDATE tenant_slots SET tokens_per_day = :v WHERE tenant_id = :t",
              v=tokens, t=play.tenant_id)  # fmt: skip


async def account(play):
    rows = await sql(
        play.db,
        "SELECT tokens, reserved_tokens FROM tenant_days WHERE tenant_id = :t",
        t=play.tenant_id,
    )
    return (rows[0]["tokens"], rows[0]["reserved_tokens"]) if rows else None


def spawn(name="spawn_run"):
    async def fn(ctx, i):
        return StartChild("a", f"part {i}")

    return make_tool(name, EffectClass.IDEMPOTENT, fn)


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_child_spent_counts_once_for_the_day(play, db):
    runtime = priced(await make_runtime(db, tools=[spawn()]))
    shared = await make_shared(db)
    await limit(play, 100_000)

    async def budgeted_step(run_id, result=None):
        ctx = await claim_tools_step(runtime, play, run_id)
        run = await reserve(ctx)
        return await play.settle(run, result or await tools.run(ctx))

    parent = await play.start()
    await budgeted_step(parent, say(tools=["spawn_run"]))  # 3 + 2 tokens
    await budgeted_step(parent)
    (child,) = await sql(db, "SELECT id FROM runs WHERE parent_run_id = :p", p=parent)
    await budgeted_step(child["id"], say("part"))  # 3 + 2 tokens
    assert await account(play) == (10, 0)
    for _ in range(100):
        await tick(shared, [WakeLoop(shared), AdmitLoop(shared)])
        if (await play.read(parent)).state.status is Status.RUNNING:
            break
    await budgeted_step(parent)
    assert await account(play) == (10, 0), "nothing was spent by joining the child"


async def test_an_outside_input_during_a_step_keeps_its_reservation_and_its_account(play, db):
    runtime = priced(await make_runtime(db))
    await limit(play, 100_000)
    run_id = await play.start()
    run = await reserve(await claim_tools_step(runtime, play, run_id))
    before = await account(play)
    assert before is not None
    assert before[1] > 1_000
    await steer_run(db, play.tenant_id, run_id, text="x", by="ann")
    assert await account(play) == before, "the step is still under way"
    await play.settle(run, say("one", tools=["look"]))
    assert await account(play) == (5, 0), "what the step took counts"


def _today():
    return datetime.now(UTC).date()


async def test_a_reservation_that_loses_a_race_is_refused_with_its_reason(play, db):
    runtime = priced(await make_runtime(db))
    await limit(play, 2_000)
    first, second = await play.start("1"), await play.start("2")
    await play.claim(first)
    late_ctx = await claim_tools_step(runtime, play, second)
    today = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
    await sql(db, f"INSERT INTO tenant_days (tenant_id, day) VALUES (:t, {today})",
              t=play.tenant_id)  # fmt: skip
    async with db.transaction() as conn:  # the first reserves, and has not committed yet
        params = {"who": play.tenant_id, "tokens": 1_500, "cost_usd": 0.0, "day": _today()}
        (row,) = await run_sql(conn, "budget_reserve", params, 5.0)
        assert row["reserved"]
        late = asyncio.create_task(reserve(late_ctx))
        await asyncio.sleep(0.5)
    with pytest.raises(Limited, match="tokens_per_day"):
        await late


async def test_a_reservation_and_a_commit_do_not_deadlock(play, db):
    """Both lock the accounts of tenant and platform: in one order."""
    runtime = priced(await make_runtime(db))
    await limit(play, 1_000_000)
    first, second = await play.start("1"), await play.start("2")
    held = await reserve(await claim_tools_step(runtime, play, first))
    ctx = await claim_tools_step(runtime, play, second)
    async with db.transaction() as conn:
        params = {"who": PLATFORM, "tokens": 0, "cost_usd": 0.0, "day": _today()}
        await run_sql(conn, "budget_reserve", params, 5.0)
        commit = asyncio.create_task(play.settle(held, say("done")))
        await asyncio.sleep(0.4)  # it waits for the platform's account
        late = asyncio.create_task(reserve(ctx))
        await asyncio.sleep(0.4)
        begun = asyncio.get_running_loop().time()
    await asyncio.gather(commit, late)
    took_s = asyncio.get_running_loop().time() - begun
    assert took_s < 0.5, f"a deadlock was broken after {took_s:.1f} s"


# ── children ─────────────────────────────────────────────────────────────────────────────────────


async def test_children_of_any_tool_share_what_is_left(play, db):
    runtime = await make_runtime(db, tools=[spawn("delegate")])
    parent = await play.start(max_tokens=105)
    await play.step(parent, say(tools=["delegate", "delegate"]))
    result = await tools.run(await claim_tools_step(runtime, play, parent))
    assert isinstance(result, ToolsWaiting)
    rows = await sql(
        db, "SELECT limits FROM runs WHERE parent_run_id = :p ORDER BY parent_idx", p=parent
    )
    assert [Limits.from_json(r["limits"]).max_tokens for r in rows] == [50, 50]


# ── waits ────────────────────────────────────────────────────────────────────────────────────────


def asking(question="q?", timeout_s=None):
    async def fn(ctx, i):
        return AskUser(question, timeout_s=timeout_s)

    return make_tool("ask_user", EffectClass.IDEMPOTENT, fn)


async def test_a_question_that_expired_while_its_run_rested_is_not_asked_again(play, db):
    """Its run was woken by another call, and paused or queued beyond the question's time."""
    runtime = await make_runtime(db, tools=[asking(timeout_s=3600)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["ask_user"]))
    past = datetime.now(UTC) - timedelta(minutes=5)
    await sql(
        db,
        "UPDATE tool_calls SET status = 'running', effect = 'idempotent', result = 'input', "
        "resume_at = :p "
        "WHERE run_id = :r",
        p=past,
        r=run_id,
    )
    result = await tools.run(await claim_tools_step(runtime, play, run_id))
    if isinstance(result, ToolsWaiting):
        assert result.waits[0].until == past
    else:
        assert isinstance(result, ToolsDone)
        assert result.outcomes[0].error_type == "INPUT_TIMEOUT"


async def test_an_unknown_outcome_of_a_tool_that_may_be_repeated_is_for_a_person_to_find(play, db):
    """The run waits for a person to resolve a call that the ledger calls unknown."""

    async def fn(ctx, i):
        raise UnknownOutcome("who knows")

    runtime = await make_runtime(db, tools=[make_tool("look", EffectClass.IDEMPOTENT, fn)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    result = await tools.run(ctx)
    applied = await play.settle(ctx.run, result)
    if isinstance(result, ToolsUnknown):
        assert applied.run.state.status is Status.WAITING_APPROVAL
        assert [c["status"] for c in await play.calls(run_id)] == ["unknown"]


async def test_a_write_that_was_begun_and_waits_is_not_begun_again_by_a_retry(play, db):
    """INV3: a job was handed in and is polled since; a retry may not hand in another."""
    handed_in = []

    async def fn(ctx, i):
        if ctx.resumed is None:
            handed_in.append(ctx.call_id)
        return WaitUntil(datetime.now(UTC) + timedelta(hours=1))

    runtime = await make_runtime(db, tools=[make_tool("submit", EffectClass.WRITE, fn)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["submit"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    waiting = await play.settle(ctx.run, await tools.run(ctx))
    assert waiting.run.state.status is Status.DELAYED
    await cancel_run(db, play.tenant_id, run_id, by="ann")
    made = (await retry_run(db, play.tenant_id, run_id, created_by="ann")).run_id
    result = await tools.run(await claim_tools_step(runtime, play, made))
    assert len(handed_in) == 1
    assert isinstance(result, ToolsUnknown)


async def test_a_dry_run_of_a_retry_finds_what_the_first_run_recorded(play, db):
    runtime = await make_runtime(db)
    source = await play.start()
    await play.step(source, say(tools=["look"]))
    await play.step(source, StepFailed(Failure("permanent", "BAD", "bad"), WHEN))
    again = (await retry_run(db, play.tenant_id, source, created_by="ann")).run_id
    await play.step(again, ran("a"))
    await play.step(again, say("the end"))
    request = ForkRun(step=0, dry_run=True)
    dry = (await fork_run(db, play.tenant_id, again, request)).run_id
    for _ in range(3):
        await answer(runtime, play.tenant_id, dry, (await play.read(dry)).version)
    state = (await play.read(dry)).state
    assert state.status is Status.SUCCEEDED, state.error


async def test_a_look_at_waiting_children_is_no_admission(play, db):
    """INV13: the tenant served longest ago comes first; a look every few seconds serves nobody."""
    runtime, shared = await make_runtime(db, tools=[spawn()]), await make_shared(db)
    parent = await play.start()
    await play.step(parent, say(tools=["spawn_run"]))
    ctx = await claim_tools_step(runtime, play, parent)
    await play.settle(ctx.run, await tools.run(ctx))
    served = "SELECT last_admitted_at FROM tenant_slots WHERE tenant_id = :t"
    before = await sql(db, served, t=play.tenant_id)
    await sql(db, "UPDATE runs SET wake_at = clock_timestamp() WHERE id = :p", p=parent)
    await tick(shared, [WakeLoop(shared)])
    assert (await play.read(parent)).state.status is Status.WAITING_CHILDREN
    assert await sql(db, served, t=play.tenant_id) == before
