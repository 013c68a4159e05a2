"""Servers that ask a person: the run waits without a worker, and any worker goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness_common.core.inputs import TimerDue
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.store.apply import apply
from harness_common.store.writes import Write
from tests.mcp.bench import asking


async def question(bench, run_id) -> str:
    state = (await bench.play.read(run_id)).state
    return str(state.waiting["calls"][0]["question"])


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_question_before_the_call_outlives_its_worker(bench, effect):
    """Also for a write: the server has done nothing yet, and its opaque state comes back to it."""
    await bench.declare("s", asking(bench.state), effects={"ask": effect})
    first = await bench.worker()
    run_id = await bench.start(("s__ask", {}))
    assert await bench.step(run_id, first) is Status.WAITING_INPUT
    assert "Which colour?" in await question(bench, run_id)
    assert "red, blue" in await question(bench, run_id)
    assert "opaque" not in str((await bench.play.read(run_id)).state.waiting)
    assert "opaque" not in str(await bench.play.events(run_id))
    await bench.pools[0].aclose()  # the worker and its server are gone
    await bench.reply(run_id, "red")
    assert await bench.step(run_id, await bench.worker()) is Status.RUNNING
    (result,) = await bench.results(run_id)
    assert result.content == "painted red"
    asked, painted = bench.effects()
    assert asked == "asked"
    assert painted.startswith("painted red with opaque-")
    (call,) = await bench.play.calls(run_id)
    assert (call["status"], call["trust"]) == ("succeeded", "untrusted")
    await bench.play.check_whole(run_id)


async def test_an_answer_that_is_none_is_asked_for_again_without_calling(bench):
    await bench.declare("s", asking(bench.state))
    worker = await bench.worker()
    run_id = await bench.start(("s__ask", {}))
    await bench.step(run_id, worker)
    await bench.reply(run_id, "green")
    assert await bench.step(run_id, worker) is Status.WAITING_INPUT
    assert "could not be used" in await question(bench, run_id)
    assert bench.effects() == ["asked"]
    await bench.reply(run_id, "decline")
    assert await bench.step(run_id, worker) is Status.RUNNING
    assert (await bench.results(run_id))[0].content == "nothing painted"


async def test_a_question_in_mid_call_ends_the_call_and_is_answered_when_it_comes_again(bench):
    await bench.declare("s", asking(bench.state, "--old"), effects={"ask_in_call": "idempotent"})
    run_id = await bench.start(("s__ask_in_call", {}))
    assert await bench.step(run_id, await bench.worker()) is Status.WAITING_INPUT
    assert bench.effects() == ["asked: cancel"]
    await bench.pools[0].aclose()
    await bench.reply(run_id, "blue")
    assert await bench.step(run_id, await bench.worker()) is Status.RUNNING
    assert (await bench.results(run_id))[0].content == "painted blue"
    assert bench.effects() == ["asked: cancel", "asked: accept", "painted blue"]


async def test_a_question_in_the_middle_of_a_write_is_declined_and_told(bench):
    await bench.declare("s", asking(bench.state, "--old"))
    run_id = await bench.start(("s__ask_in_call", {}))
    assert await bench.step(run_id, await bench.worker()) is Status.RUNNING
    (result,) = await bench.results(run_id)
    assert result.content.startswith("nothing painted")
    assert "declared read or idempotent" in result.content
    assert bench.effects() == ["asked: decline"]


async def test_a_question_while_calls_run_side_by_side_is_put_when_they_run_alone(bench):
    await bench.declare(
        "s", asking(bench.state, "--old"), effects={"ask_in_call": "read", "slow": "read"}
    )
    run_id = await bench.start(("s__ask_in_call", {}), ("s__slow", {"s": 1}))
    worker = await bench.worker()
    assert await bench.step(run_id, worker) is Status.WAITING_INPUT
    await bench.reply(run_id, "red")
    assert await bench.step(run_id, worker) is Status.RUNNING
    assert [r.content for r in await bench.results(run_id)] == ["painted red", "done"]


async def test_nobody_answers(bench):
    await bench.declare("s", asking(bench.state))
    worker = await bench.worker()
    run_id = await bench.start(("s__ask", {}))
    await bench.step(run_id, worker)
    later = datetime.now(UTC) + timedelta(days=31)
    run = await bench.play.read(run_id)
    write = Write(run, advance(run.state, [TimerDue()], later), later)
    async with bench.db.connection() as conn:
        assert await apply(conn, [write], timeout_s=5) != [None]
    assert await bench.step(run_id, worker) is Status.RUNNING
    assert (await bench.results(run_id))[0].error_type == "INPUT_TIMEOUT"
    assert bench.effects() == ["asked"]
