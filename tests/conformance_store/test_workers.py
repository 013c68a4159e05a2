"""The worker's own code over each store: many runs at once, whole runs, and what it may reuse."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from harness_common.commands import cancel_run, steer_run
from harness_common.contracts.tool import EffectClass
from harness_common.core.run import Status
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_worker.advance import answer
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.steps import tools as tools_step
from tests.conformance_store.board import Board, make_tenant
from tests.store.play import say
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool
from tests.worker.tool_steps import a_tool, asks


async def work(runtime, until, shared=None, loops=()):
    """Answer what is rung, as the pool of a worker does, until `until`; the bound is generous."""
    for _ in range(500):
        bells, runtime.bell.rung = runtime.bell.rung, []
        if shared is not None:
            await tick(shared, list(loops))
            bells += shared.bell.rung
            shared.bell.rung = []
        outcomes = await asyncio.gather(
            *(answer(runtime, b.tenant_id, b.run_id, b.version) for b in bells)
        )
        if until():
            return outcomes
        if not bells:
            await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def test_many_runs_at_once_each_go_to_their_end(play):
    ids = [await play.start(f"run {n}") for n in range(40)]
    runtime = await make_runtime(play.db)
    versions = [(await play.read(run_id)).version for run_id in ids]
    # Every doorbell three times: by a broker that delivers again, and in any order.
    bells = list(zip(ids, versions, strict=True)) * 3
    outcomes = await asyncio.gather(
        *(answer(runtime, play.tenant_id, run_id, version) for run_id, version in bells)
    )
    assert Counter(outcomes)["succeeded"] == len(ids)
    for run_id in ids:
        run = await play.read(run_id)
        assert (run.state.status, run.state.output, run.fence) == (Status.SUCCEEDED, "x", 1)
        await play.check_whole(run_id)
    assert await play.running() == 0


async def test_many_tenants_share_a_worker_and_their_slots_come_out_even(db):
    boards = [Board(db, await make_tenant(db, f"t{n}", slots=2)) for n in range(3)]
    runtime, shared = await make_runtime(db), await boards[0].shared()
    ids = [(board, await board.start(f"{n}")) for board in boards for n in range(6)]

    def all_ended():
        return runtime.counters.steps >= len(ids)

    loops = [WakeLoop(shared), AdmitLoop(shared), DispatchLoop(shared)]
    await db.fetch("ring_all", {"term": shared.term})
    await work(runtime, all_ended, shared, loops)
    for board, run_id in ids:
        assert await board.status(run_id) is Status.SUCCEEDED
        await board.check_whole(run_id)
    assert [await board.running() for board in boards] == [0, 0, 0]


async def test_people_who_write_while_workers_commit_lose_nothing(play):
    """INV20 under load: messages and cancels race with commits."""
    ids = [await play.start() for _ in range(12)]
    runs = [await play.claim(run_id) for run_id in ids]

    async def person(n, run_id):
        if n % 3 == 0:
            return await cancel_run(play.db, play.tenant_id, run_id, by="ann")
        try:
            return await steer_run(play.db, play.tenant_id, run_id, text="hi", by="ann")
        except Exception as error:  # noqa: BLE001 - it was over already
            return error

    await asyncio.gather(
        *(play.settle(run, say()) for run in runs), *(person(n, i) for n, i in enumerate(ids))
    )
    for run_id in ids:
        run = await play.read(run_id)
        assert run.state.step == 1
        assert run.claim_id is None
        await play.check_whole(run_id)
    assert await play.running() == sum([await play.status(i) is Status.RUNNING for i in ids])


async def test_a_step_with_tools_writes_its_ledger(play):
    made = []

    async def fn(ctx, i):
        made.append(ctx.idempotency_key)
        return f"got {i}"

    tools = [make_tool(e.value, e, fn) for e in EffectClass]
    await play.agent("a", tools=[t.spec.name for t in tools])
    runtime = await make_runtime(play.db, tools=tools)
    run_id = await play.start(created_by=await play.make_key())
    await play.step(run_id, say(tools=[t.spec.name for t in tools]))
    version = (await play.read(run_id)).version
    assert await answer(runtime, play.tenant_id, run_id, version) == "running"
    calls = await play.calls(run_id)
    assert [(c["status"], c["result"], c["effect"]) for c in calls] == [
        ("succeeded", f"got {n}", e.value) for n, e in enumerate(EffectClass)
    ]
    assert len(set(made)) == 3
    await play.check_whole(run_id)


async def test_a_cached_read_is_reused_within_its_session_only(play):
    made = []

    async def fn(ctx, i):
        made.append(i)
        return f"got {i}"

    tool = a_tool("look", "read", fn, cache_s=60.0)
    await play.agent("a", tools=["look"])
    runtime = await make_runtime(play.db, tools=[tool])
    key = await play.make_key()

    async def ask(session=None):
        run_id = await play.start(created_by=key, session_id=session)
        await play.step(run_id, asks(("look", {"i": 1})))
        ctx = await claim_tools_step(runtime, play, run_id)
        await play.settle(ctx.run, await tools_step.run(ctx))
        await play.step(run_id, say())
        return await play.read(run_id)

    first = await ask()
    second = await ask(first.session_id)
    assert made == [1]
    (call,) = await play.calls(second.id)
    assert call["cached_from"].startswith("run_")
    await ask()
    assert made == [1, 1], "another session asks itself"


async def test_a_store_that_is_held_says_so_in_time(play):
    """INV11: nothing waits for good; a statement that cannot be made raises."""
    run_id = await play.start()
    want = {"tenant_id": play.tenant_id, "run_id": run_id}
    play.db.timeout_s, before = 0.3, play.db.timeout_s
    try:
        async with play.db.transaction() as conn:
            await run_sql(conn, "lock_run", want, 5)
            asking = asyncio.create_task(cancel_run(play.db, play.tenant_id, run_id, by="ann"))
            with pytest.raises(DatabaseUnavailable):
                await asking
    finally:
        play.db.timeout_s = before
    assert await play.status(run_id) is Status.RUNNING
