"""Harness in one process: the worker and the scheduler themselves, over the store in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from harness_common.core.errors import Conflict, NotFound, Permanent
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.run_reads import RunFilter, list_runs
from harness_worker.local import LocalHarness
from harness_worker.sdk import StartChild, ToolContext, UnknownOutcome, tool

ASKS = "rules: [{name: careful, match: {effect: write}, then: ask, reason: it changes something}]"


def script(*answers):
    return {"script": list(answers)}


def call(name, **arguments):
    return {"name": name, "input": arguments}


@pytest.fixture
def made():
    return []


@pytest.fixture
async def lingers():
    """Is set when `linger` is under way."""
    return asyncio.Event()


@pytest.fixture
async def h(made, lingers) -> AsyncIterator[LocalHarness]:
    @tool(effect="read")
    async def look(ctx: ToolContext, what: str) -> str:
        """Look something up. Use it to know what is there."""
        return f"saw {what}"

    @tool(effect="write")
    async def pay(ctx: ToolContext, amount: int) -> str:
        """Pay somebody. Use it when a bill is due."""
        made.append(amount)
        return f"paid {amount}"

    @tool(effect="write")
    async def doubt(ctx: ToolContext) -> str:
        """Do something whose outcome is never known. Use it in tests."""
        raise UnknownOutcome("the connection broke")

    @tool(effect="read", timeout_s=60)
    async def linger(ctx: ToolContext) -> str:
        """Take a long time. Use it in tests."""
        lingers.set()
        await asyncio.sleep(60)
        return "late"

    @tool(effect="idempotent")
    async def delegate(ctx: ToolContext, part: str) -> StartChild:
        """Let another agent do a part. Use it for work that stands on its own."""
        return StartChild("helper", part)

    async with LocalHarness(tools=[look, pay, doubt, linger, delegate]) as opened:
        yield opened


async def test_a_run_has_all_that_a_run_has(h):
    await h.agent(
        "a",
        tools=["look"],
        model_options=script(
            {"text": "let me see", "tools": [call("look", what="it")]},
            {"text": "it says {{last_result}}"},
        ),
    )
    run = await h.run("a", "what is it?", timeout_s=20)
    assert (run.status, run.output, run.steps) == ("succeeded", "it says saw it", 3)
    assert [c["kind"] for c in run.checkpoints] == ["model", "tools", "model"]
    assert [m["role"] for m in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert [(c["name"], c["status"], c["result"]) for c in run.calls] == [
        ("look", "succeeded", "saw it")
    ]
    assert [e["seq"] for e in run.events] == list(range(1, len(run.events) + 1))
    assert run.events[-1]["type"] == "run.completed"
    assert run.input_tokens > 0


async def test_a_person_approves_denies_and_changes(h, made):
    await h.policy(ASKS)
    await h.agent(
        "a",
        tools=["pay"],
        model_options=script({"tools": [call("pay", amount=5)]}, {"text": "{{last_result}}"}),
    )
    run = await h.run("a", "pay", timeout_s=20)
    assert (run.status, made) == ("waiting_approval", [])
    assert run.approvals[0]["shown"]["reasons"] == ["it changes something"]
    done = await h.wait(await h.approve(run, arguments={"amount": 4}), timeout_s=20)
    assert (done.status, made) == ("succeeded", [4])
    assert done.output.endswith("paid 4"), "the model is told that a person changed it"
    with pytest.raises(Conflict):
        await h.approve(run)
    denied = await h.run("a", "pay", timeout_s=20)
    denied = await h.wait(await h.deny(denied, reason="too much"), timeout_s=20)
    assert "too much" in denied.output
    assert made == [4]


async def test_a_question_is_answered_and_a_conversation_goes_on(h):
    await h.agent(
        "a",
        tools=["ask_user"],
        model_options=script(
            {"tools": [call("ask_user", question="which?", choices=["red", "blue"])]},
            {"text": "so {{last_result}}"},
        ),
    )
    run = await h.run("a", "choose", timeout_s=20)
    assert run.status == "waiting_input"
    assert run.waiting["calls"][0]["question"] == "which?"
    done = await h.wait(await h.answer(run, "blue"), timeout_s=20)
    assert done.output == "so blue"
    again = await h.run("a", "once more", session=done.session, timeout_s=20)
    assert again.session == done.session


async def test_a_run_is_stopped_paused_and_resumed(h, lingers):
    await h.agent("slow", tools=["linger"], model_options=script({"tools": [call("linger")]}))
    run = await h.start("slow", "go")
    async with asyncio.timeout(20):
        await lingers.wait()
    began = asyncio.get_running_loop().time()
    done = await h.wait(await h.cancel(run, reason="enough"), timeout_s=20)
    assert done.status == "cancelled"
    assert asyncio.get_running_loop().time() - began < 2, "INV9"
    await h.agent("a", model_options=script({"text": "hello", "delay_s": 0.2}))
    paused = await h.pause(await h.start("a", "hi"))
    assert paused.status in {"running", "paused", "succeeded"}
    if (rested := await h.wait(paused, timeout_s=20)).status == "paused":
        rested = await h.wait(await h.resume(rested), timeout_s=20)
    assert rested.output == "hello"


async def test_children_work_and_their_parent_joins_them(h):
    await h.agent("helper", model_options=script({"text": "did my part"}))
    await h.agent(
        "boss",
        tools=["delegate"],
        model_options=script(
            {"tools": [call("delegate", part="one"), call("delegate", part="two")]},
            {"text": "{{result:1}} and {{result:2}}"},
        ),
    )
    run = await h.run("boss", "go", timeout_s=30)
    assert (run.status, run.output) == ("succeeded", "did my part and did my part")
    assert "run.waiting" in [e["type"] for e in run.events]


async def test_an_unknown_effect_waits_for_a_person(h):
    await h.agent(
        "a",
        tools=["doubt"],
        model_options=script({"tools": [call("doubt")]}, {"text": "{{last_result}}"}),
    )
    run = await h.run("a", "go", timeout_s=20)
    assert (run.status, run.calls[0]["status"]) == ("waiting_approval", "unknown")
    said = await h.resolve(run, "2.0", "succeeded", reason="I looked", result="it was done")
    assert (await h.wait(said, timeout_s=20)).output == "it was done"


async def test_forks_retries_and_the_record(h, made):
    await h.agent(
        "a",
        tools=["look", "pay"],
        model_options=script(
            {"tools": [call("look", what="it"), call("pay", amount=1)]},
            {"error": "permanent", "times": 1},
        ),
    )
    run = await h.run("a", "go", timeout_s=20)
    assert (run.status, run.error["code"]) == ("failed", "SCRIPTED_ERROR")
    await h.agent(
        "a",
        tools=["look", "pay"],
        model_options=script(
            {"tools": [call("look", what="it"), call("pay", amount=1)]}, {"text": "{{result:2}}"}
        ),
    )
    fork = await h.wait(await h.fork(run, 2, agent_version=2), timeout_s=20)
    assert (fork.status, fork.output) == ("succeeded", "paid 1")
    assert made == [1], "the ledger came with the checkpoint"
    replay = await h.wait(await h.fork(fork.id, dry_run=True, step=None), timeout_s=20)
    assert made == [1], "nothing outside is called"
    assert replay.status in {"succeeded", "failed"}
    retried = await h.wait(await h.retry(run), timeout_s=20)
    assert retried.session == run.session
    assert made == [1]


async def test_a_timer_goes_by_the_clock_of_the_harness():
    ahead = [timedelta()]
    async with LocalHarness(clock=lambda: datetime.now(UTC) + ahead[0]) as h:
        await h.agent(
            "a",
            tools=["wait"],
            model_options=script({"tools": [call("wait", seconds=86_400)]}, {"text": "next day"}),
        )
        run = await h.start("a", "wait")
        with pytest.raises(TimeoutError):
            await h.wait(run, timeout_s=0.5)
        assert (await h.look(run)).status == "delayed"
        ahead[0] = timedelta(days=1)
        assert (await h.wait(run, timeout_s=20)).output == "next day"


async def test_many_runs_at_once(h):
    await h.agent(
        "a",
        tools=["look"],
        model_options=script({"tools": [call("look", what="x")]}, {"text": "{{last_result}}"}),
    )
    runs = await asyncio.gather(*(h.run("a", f"{n}", timeout_s=60) for n in range(100)))
    assert {run.output for run in runs} == {"saw x"}
    assert len({run.id for run in runs}) == 100
    assert all([e["seq"] for e in r.events] == list(range(1, len(r.events) + 1)) for r in runs)


async def test_two_harnesses_know_nothing_of_each_other(h):
    await h.agent("a", model_options=script({"text": "one"}))
    run = await h.run("a", "hi", timeout_s=20)
    async with LocalHarness() as other:
        with pytest.raises(NotFound):
            await other.look(run)
        with pytest.raises(NotFound):
            await other.run("a", "hi")


async def test_deltas_are_seen_while_the_model_answers(h):
    answer = {"stream": ["one ", "two"], "delay_s": 0.1}
    await h.agent("a", model_options=script(answer))
    run = await h.start("a", "hi")
    text = ""
    async with asyncio.timeout(20), h.watch(run) as shown:
        async for event in shown:
            text += event.get("text", "")
            if event.get("status") == "succeeded":
                break
    assert text == "one two"


async def test_what_needs_postgres_says_so(h):
    for ask in (
        list_runs(h.db, h.tenant_id, RunFilter(), before=None, limit=10),
        h.db.fetch("memory_search", {}),
    ):
        with pytest.raises(Permanent) as told:
            await ask
        assert told.value.error_code == "NEEDS_POSTGRES"


async def test_a_statement_beside_an_open_transaction_of_its_own_task_is_refused(h):
    async with h.db.transaction():
        with pytest.raises(RuntimeError, match="its own task"):
            await h.db.fetch("workers_alive", {})
    h.db.timeout_s = 0.2
    async with h.db.transaction():
        with pytest.raises(DatabaseUnavailable, match="held"):
            await asyncio.create_task(h.db.fetch("workers_alive", {}))
    h.db.timeout_s = 10.0


def test_it_needs_no_setting_and_leaves_nothing(tmp_path):
    """As in a fresh notebook: no variable, no server, and no broker known at import."""
    program = (
        "import asyncio\n"
        "from harness_worker.local import LocalHarness\n"
        "async def main():\n"
        "    async with LocalHarness() as h:\n"
        "        await h.agent('a', model_options={'script': [{'text': 'hi'}]})\n"
        "        print((await h.run('a', 'x', timeout_s=20)).output)\n"
        "asyncio.run(main())\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("HARNESS_")}
    env["PYTHONPATH"] = os.getcwd()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["hi"], done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []
