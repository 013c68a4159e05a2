"""The ledger: results are given back only to whom they belong, a crash repeats only what was not
finished, equal writes happen once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from harness_common.contracts.tool import WaitUntil
from harness_common.core.errors import Denied
from harness_common.core.policy import Decision, Verdict
from harness_common.core.run import Status
from harness_common.core.tool_call import CallStatus
from harness_common.settings import DatabaseSettings
from harness_worker.steps import tools
from harness_worker.steps.tools import scope_of
from harness_worker.tools.call import PendingCall
from harness_worker.tools.gate import Gate
from harness_worker.tools.keeper import KEEP_AFTER_S
from harness_worker.tools.ledger import fingerprint
from harness_worker.tools.runner import ToolRunner
from tests.store.play import sql
from tests.worker.runtime import claim_tools_step
from tests.worker.tool_steps import (
    CountingDatabase,
    a_tool,
    a_worker,
    asked,
    die,
    events,
    work,
)


class Counted:
    """Functions of tools that count their calls."""

    def __init__(self):
        self.calls: Counter[str] = Counter()

    def say(self, name, result="ok"):
        async def fn(ctx, **args):
            self.calls[name] += 1
            return result

        return fn


async def crashed_after(runtime, play, run_id, *, until):
    """Run the step until `until` holds in the ledger, and let its process die there."""
    ctx = await claim_tools_step(runtime, play, run_id)
    task = asyncio.ensure_future(tools.run(ctx))
    async with asyncio.timeout(5):
        while not until(await play.calls(run_id)):  # noqa: ASYNC110 - Postgres rings no bell
            await asyncio.sleep(0.01)
    # A killed process writes nothing more: its database is gone before its tasks are.
    task.cancel()
    await asyncio.wait([task])
    await die(play, run_id)


# ── whose result ─────────────────────────────────────────────────────────────────────────────────


async def test_every_call_that_starts_has_a_fingerprint(play, db):
    made = [a_tool(e, e, Counted().say(e)) for e in ("read", "idempotent", "write")]
    runtime = await a_worker(db, made)
    run_id = await asked(
        play, ("read", {"x": 1}), ("idempotent", {"x": 1}), ("write", {"x": 1}), ("none", {})
    )
    rows = await work(runtime, play, run_id)
    wanted = [fingerprint(play.tenant_id, tool, {"x": 1}) for tool in made]
    assert [r["fingerprint"] for r in rows] == [*wanted, None]
    assert len(set(wanted)) == 3
    assert rows[0]["effect"] == "read"


async def a_finished_write(play, db, counted, **changed):
    """Give a run whose write is done and recorded, and whose step is still to be committed; the
    tool has changed meanwhile.
    """
    runtime = await a_worker(db, [a_tool("pay", "write", counted.say("pay", "paid"))])
    run_id = await asked(play, ("pay", {"x": 1}))
    ctx = await claim_tools_step(runtime, play, run_id)
    await tools.run(ctx)
    await die(play, run_id)
    runtime.catalog.local.remove("pay")
    runtime.catalog.local.add(a_tool("pay", "write", counted.say("pay", "again"), **changed))
    return runtime, run_id


async def test_a_recorded_result_is_given_back_and_nothing_is_run(play, db):
    counted = Counted()
    runtime, run_id = await a_finished_write(play, db, counted)
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["result"], counted.calls["pay"]) == ("succeeded", "paid", 1)
    (result,) = (await play.messages(run_id))[-1].content
    assert (result.content, result.is_error) == ("paid", False)


@pytest.mark.parametrize("what", ["version", "arguments", "principal"])
async def test_another_s_result_is_a_conflict_and_nothing_is_run(play, db, what):
    counted = Counted()
    changed = {"version": "2"} if what == "version" else {}
    runtime, run_id = await a_finished_write(play, db, counted, **changed)
    if what == "arguments":
        await sql(db, "UPDATE tool_calls SET arguments = '{\"x\": 2}' WHERE run_id = :r", r=run_id)
    if what == "principal":
        other = fingerprint(run_id, runtime.catalog.local.get("pay"), {"x": 1})
        await sql(db, "UPDATE tool_calls SET fingerprint = :f WHERE run_id = :r", f=other, r=run_id)
    (row,) = await work(runtime, play, run_id)
    assert counted.calls["pay"] == 1
    (result,) = (await play.messages(run_id))[-1].content
    assert (result.error_type, result.is_error) == ("LEDGER_CONFLICT", True)
    assert "paid" not in result.content
    assert (row["status"], row["result"]) == ("succeeded", "paid"), "what happened stays on record"


async def test_policy_is_asked_again_before_a_recorded_result_is_given(play, db):
    class Deny(Gate):
        def recheck(self, call):
            return Decision(Verdict.DENY, ("changed their mind",))

    runtime, run_id = await a_finished_write(play, db, Counted())
    ctx = await claim_tools_step(runtime, play, run_id)
    runner = ToolRunner(await scope_of(ctx), Deny(await scope_of(ctx)))
    outcome = await runner.run(PendingCall.from_row(ctx.calls[0]))
    assert outcome.error_type == "PERMISSION_DENIED"
    assert "changed their mind" in outcome.content
    assert "paid" not in outcome.content


async def test_what_a_result_tells_of_its_origin_survives_a_crash(play, db):
    """Q3: an untrusted result would come back as a trusted one."""
    runtime = await a_worker(
        db, [a_tool("post", "write", Counted().say("post"), untrusted_output=True)]
    )
    run_id = await asked(play, ("post", {}))
    await tools.run(await claim_tools_step(runtime, play, run_id))
    await die(play, run_id)
    await work(runtime, play, run_id)
    assert (await play.messages(run_id))[-1].trust == "untrusted"


# ── partial results ──────────────────────────────────────────────────────────────────────────────


async def test_a_crash_repeats_only_what_was_not_finished(play, db):
    counted, gate, keys = Counted(), asyncio.Event(), []

    async def slow(ctx, **args):
        counted.calls["slow"] += 1
        keys.append(ctx.idempotency_key)
        await gate.wait()
        return "late"

    async def broken(ctx, **args):
        counted.calls["broken"] += 1
        raise KeyError("x")

    runtime = await a_worker(
        db,
        [
            a_tool("quick", "read", counted.say("quick")),
            a_tool("put", "idempotent", counted.say("put")),
            a_tool("broken", "read", broken),
            a_tool("slow", "idempotent", slow),
        ],
    )
    run_id = await asked(play, ("quick", {}), ("put", {}), ("broken", {}), ("slow", {}))
    await crashed_after(
        runtime, play, run_id, until=lambda rows: [r["status"] for r in rows][:3] ==
        ["succeeded", "succeeded", "failed"],
    )  # fmt: skip
    gate.set()
    rows = await work(runtime, play, run_id)
    assert counted.calls == {"quick": 1, "put": 1, "broken": 1, "slow": 2}
    assert len(keys) == 2
    assert len(set(keys)) == 1, "an idempotent call is repeated with the same key"
    assert [r["status"] for r in rows] == ["succeeded", "succeeded", "failed", "succeeded"]
    assert len((await play.messages(run_id))[-1].content) == 4
    await play.check_whole(run_id)


async def test_a_stale_owner_keeps_nothing(play, db):
    """INV6: what it found would stand as the next owner's result."""
    gate = asyncio.Event()

    async def slow(ctx, **args):
        await gate.wait()
        return "late"

    runtime = await a_worker(
        db, [a_tool("quick", "read", Counted().say("quick")), a_tool("slow", "read", slow)]
    )
    run_id = await asked(play, ("quick", {}), ("slow", {}))
    ctx = await claim_tools_step(runtime, play, run_id)
    await die(play, run_id)
    task = asyncio.ensure_future(tools.run(ctx))
    await asyncio.sleep(6 * KEEP_AFTER_S)
    assert [r["status"] for r in await play.calls(run_id)] == ["proposed", "proposed"]
    gate.set()
    await task


async def round_trips(play, database_url, made, *calls):
    """Run one step of these calls; returns how often its worker spoke to Postgres."""
    mine = CountingDatabase(database_url, DatabaseSettings(pool_max=4))
    async with mine:
        await mine.ready()
        runtime = await a_worker(mine, made)
        await work(runtime, play, await asked(play, *calls))  # reads the agent as well
        run_id = await asked(play, *calls)
        before = mine.lent
        await work(runtime, play, run_id)
        return mine.lent - before


async def test_a_step_of_quick_reads_costs_a_claim_the_facts_and_a_commit(play, database_url):
    """Policy reads its facts once; fingerprints, breakers and partial results add nothing."""
    made = [a_tool("quick", "read", Counted().say("quick"))]
    assert await round_trips(play, database_url, made, ("quick", {})) == 3
    assert (
        await round_trips(play, database_url, made, *[("quick", {"i": i}) for i in range(8)]) == 3
    )


async def test_a_slow_read_alone_costs_no_more(play, database_url):
    async def slow(ctx, **args):
        await asyncio.sleep(4 * KEEP_AFTER_S)
        return "x"

    made = [a_tool("slow", "read", slow)]
    assert await round_trips(play, database_url, made, ("slow", {})) == 3


# ── equal writes ─────────────────────────────────────────────────────────────────────────────────


async def test_of_two_equal_writes_one_is_run(play, db):
    counted = Counted()
    runtime = await a_worker(
        db,
        [
            a_tool("pay", "write", counted.say("pay", "paid")),
            a_tool("look", "read", counted.say("look")),
        ],
    )
    run_id = await asked(
        play,
        ("pay", {"x": {"a": 1, "b": 2}}), ("look", {}), ("look", {}),
        ("pay", {"x": {"b": 2, "a": 1}}), ("pay", {"x": {"a": 1}}),
    )  # fmt: skip
    rows = await work(runtime, play, run_id)
    assert counted.calls == {"pay": 2, "look": 2}
    assert [r["duplicate_of"] for r in rows] == [None, None, None, "2.0", None]
    assert [r["status"] for r in rows] == ["succeeded"] * 5
    results = (await play.messages(run_id))[-1].content
    assert results[3].content.startswith("paid\n[duplicate_of: 2.0.")
    done = [e["payload"].get("duplicate_of") for e in await events(play, run_id, "tool.completed")]
    assert done.count("2.0") == 1
    assert rows[3]["cost_usd"] == 0


async def test_a_repeatable_write_is_run_twice(play, db):
    counted = Counted()
    runtime = await a_worker(db, [a_tool("roll", "write", counted.say("roll"), repeatable=True)])
    run_id = await asked(play, ("roll", {}), ("roll", {}))
    rows = await work(runtime, play, run_id)
    assert counted.calls["roll"] == 2
    assert [r["duplicate_of"] for r in rows] == [None, None]


async def test_a_repetition_of_a_failed_write_has_failed(play, db):
    counted = Counted()

    async def pay(ctx, **args):
        counted.calls["pay"] += 1
        raise Denied("no")

    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    run_id = await asked(play, ("pay", {}), ("pay", {}))
    rows = await work(runtime, play, run_id)
    assert counted.calls["pay"] == 1
    assert [(r["status"], r["error_type"]) for r in rows] == [("failed", "DENIED")] * 2


async def test_a_repetition_of_an_unknown_write_waits_with_it(play, db):
    counted = Counted()

    async def pay(ctx, **args):
        counted.calls["pay"] += 1
        raise RuntimeError("the line went dead")

    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    run_id = await asked(play, ("pay", {}), ("pay", {}))
    rows = await work(runtime, play, run_id)
    assert [r["status"] for r in rows] == ["unknown", "proposed"]
    state = (await play.read(run_id)).state
    assert (state.status, state.waiting["calls"]) == (Status.WAITING_APPROVAL, ["2.0"])
    # A person says that it happened; both calls have that answer, and nothing is run.
    await sql(
        db,
        "UPDATE tool_calls SET status = 'succeeded', error_type = NULL, result = 'a person saw it' "
        "WHERE run_id = :r AND idx = 0",
        r=run_id,
    )
    await sql(
        db,
        "UPDATE runs SET status = 'running', waiting = NULL, version = version + 1 WHERE id = :r",
        r=run_id,
    )
    rows = await work(runtime, play, run_id)
    assert counted.calls["pay"] == 1
    assert [r["status"] for r in rows] == ["succeeded", "succeeded"]
    assert rows[1]["result"].startswith("a person saw it")
    assert rows[1]["duplicate_of"] == "2.0"


async def test_a_repetition_of_a_write_that_waits_waits_with_it(play, db):
    counted = Counted()

    async def pay(ctx, **args):
        counted.calls["pay"] += 1
        if ctx.resumed is None:
            return WaitUntil(ctx.now + timedelta(hours=1))
        return "paid"

    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    run_id = await asked(play, ("pay", {}), ("pay", {}))
    rows = await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.status is Status.DELAYED
    assert counted.calls["pay"] == 1
    assert [r["status"] for r in rows] == ["running", "proposed"]


async def test_a_write_that_was_started_is_no_repetition(play, db):
    """Its own intent is what decides: it may have happened."""
    runtime = await a_worker(db, [a_tool("pay", "write", Counted().say("pay"))])
    run_id = await asked(play, ("pay", {}), ("pay", {}))
    await sql(
        db,
        "UPDATE tool_calls SET status = 'running', effect = 'write', attempt_id = uuid7(), "
        "attempt = 1 WHERE run_id = :r AND idx = 1",
        r=run_id,
    )
    rows = await work(runtime, play, run_id)
    assert [r["status"] for r in rows] == ["succeeded", "unknown"]


# ── order and bounds ─────────────────────────────────────────────────────────────────────────────


async def test_reads_go_side_by_side_but_not_without_end_and_writes_one_after_another(play, db):
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    order: list[tuple[str, int]] = []

    def fn(kind):
        async def call(ctx, i):
            now[kind] += 1
            most[kind] = max(most[kind], now[kind])
            await asyncio.sleep(0.02 if kind == "write" else 0.02 * (5 - i % 5))
            order.append((kind, i))
            now[kind] -= 1
            return f"{kind} {i}"

        return call

    made = [a_tool("read", "read", fn("read")), a_tool("write", "write", fn("write"))]
    runtime = await a_worker(db, made, parallel_reads=3)
    calls = [("read", {"i": i}) for i in range(8)] + [("write", {"i": i}) for i in range(3)]
    run_id = await asked(play, *calls)
    rows = await work(runtime, play, run_id)
    assert most == {"read": 3, "write": 1}
    assert [o for o in order if o[0] == "write"] == [("write", i) for i in range(3)]
    assert order[:8] != sorted(order[:8]), "the reads did end in another order than asked"
    told = [part.content for part in (await play.messages(run_id))[-1].content]
    assert told == [f"{name} {args['i']}" for name, args in calls]
    assert {r["status"] for r in rows} == {str(CallStatus.SUCCEEDED)}


async def test_progress_is_told_while_the_call_goes_on(play, db):
    gate = asyncio.Event()

    async def slow(ctx, **args):
        await ctx.progress("half", 0.5)
        await gate.wait()
        return "x"

    runtime = await a_worker(db, [a_tool("slow", "read", slow)])
    run_id = await asked(play, ("slow", {}))
    task = asyncio.ensure_future(work(runtime, play, run_id))
    async with asyncio.timeout(5):
        while not (told := await events(play, run_id, "tool.progress")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert told[0]["payload"]["fraction"] == 0.5
    assert not task.done()
    gate.set()
    await task
