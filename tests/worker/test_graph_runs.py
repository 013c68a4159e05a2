"""Graph runs over the real store: every kind of node, and what a crash, a wait or a person does."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.commands import (
    Approver,
    Decide,
    ForkRun,
    cancel_run,
    decide_approval,
    fork_run,
    pause_run,
    resume_run,
    retry_run,
)
from harness_common.contracts.model import Usage
from harness_common.core.errors import Denied, Limited, Permanent, Transient
from harness_common.core.run import Status
from harness_common.settings import Settings
from harness_common.store.audit import Actor
from harness_common.store.policies import TENANT, put_policy
from harness_common.store.run_reads import read_answers
from harness_worker.advance import release_all
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.tools import spawn_run, wait
from tests.store.play import sql
from tests.worker.graph_runs import go_on, graph_worker, node_events, step
from tests.worker.runtime import make_shared
from tests.worker.test_budgets import NoPrices, account, limit
from tests.worker.tool_steps import Crash, a_tool, die

SCHEMA = {"type": "object", "properties": {"n": {}, "i": {}, "x": {}}}
LIST_AND_SUM = """
state: {total: {reduce: add, start: 0}}
nodes:
  list: {kind: tool, tool: numbers, args: {n: "${/input/n}"}}
  square: {kind: map, over: "${/nodes/list/output}", parallel: 4,
           do: {tool: square, args: {i: "${/item}"}}}
  sum: {kind: tool, tool: add_up, args: {x: "${/nodes/square/output}"},
        set: {total: "${/output}"}}
edges: ["list -> square -> sum"]
output: "${/state/total}"
"""


def tool_of(name, fn, effect="read", **more):
    return a_tool(name, effect, fn, input_schema=SCHEMA, **more)


def number_tools(seen, effect="read", before=None):
    """Make the tools of `LIST_AND_SUM`; `before` may stop a call of `square`."""

    async def numbers(ctx, n):
        return list(range(n))

    async def square(ctx, i):
        if before is not None:
            await before(i)
        seen.append(i)
        return i * i

    async def add_up(ctx, x):
        return sum(x)

    made = [tool_of("numbers", numbers), tool_of("square", square, effect)]
    return [*made, tool_of("add_up", add_up)]


@pytest.fixture
async def shared(db):
    """Lead the scheduler."""
    return await make_shared(db)


async def admit(shared, play, run_id):
    """Let the scheduler wake and admit what is due, once it is due."""
    for _ in range(200):
        await tick(shared, [WakeLoop(shared), AdmitLoop(shared)])
        if (await play.read(run_id)).state.status is Status.RUNNING:
            return
        await asyncio.sleep(0.02)
    raise AssertionError((await play.read(run_id)).state)


async def test_tools_alone_make_a_run_without_any_model(play, db):
    seen: list[int] = []
    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen))
    run_id = await play.start('{"n": 5}')
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    run = await play.read(run_id)
    assert run.state.output == "30"
    assert run.state.turn == 0
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert await node_events(play, run_id) == [
        ("started", "list"),
        ("completed", "list"),
        ("started", "square"),
        ("completed", "square"),
        ("started", "sum"),
        ("completed", "sum"),
    ]
    await play.check_whole(run_id)


@pytest.mark.parametrize("size", [30_000, 70_000])
async def test_a_value_is_whole_up_to_a_limit_and_then_an_artifact(play, db, tmp_path, size):
    async def text_of(ctx, n):
        return "x" * n

    graph = """
nodes: {big: {kind: tool, tool: text_of, args: {n: "${/input/n}"}}}
output: "${/nodes/big/output}"
"""
    runtime = await graph_worker(db, graph, [tool_of("text_of", text_of)])
    runtime.blobs = LocalBlobs(tmp_path)
    run_id = await play.start(json.dumps({"n": size}))
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    output = (await play.read(run_id)).state.output
    assert output is not None
    if size <= 64 * 1024:
        assert output == "x" * size
        return
    (call,) = await play.calls(run_id)
    (kept,) = call["artifacts"]
    assert json.loads(output) == {"artifact": kept, "bytes": size, "head": "x" * 1_000}


async def test_a_worker_that_stops_awaits_a_write_whatever_stands_beside_it(play, db):
    """INV3: interrupted, it would be unknown, although its process had the time to hear of it."""
    paying, looking, paid, go = (asyncio.Event() for _ in range(4))

    async def pay(ctx, **args):
        paying.set()
        await paid.wait()
        return "paid"

    async def look(ctx, i):
        looking.set()
        await go.wait()
        return i

    graph = """
nodes:
  pay: {kind: tool, tool: pay}
  look: {kind: map, over: [1, 2, 3], parallel: 1, do: {tool: look, args: {i: "${/item}"}}}
"""
    tools = [tool_of("pay", pay, "write"), tool_of("look", look)]
    runtime = await graph_worker(db, graph, tools)
    run_id = await play.start()
    await step(runtime, play, run_id)
    working = asyncio.ensure_future(step(runtime, play, run_id))
    await paying.wait()
    await looking.wait()
    release_all(runtime)
    go.set()  # the next of the map is not made any more
    done, _ = await asyncio.wait([working], timeout=0.5)
    assert not done, "the write is awaited"
    paid.set()
    assert await working is Status.RUNNING
    rows = {(c["name"], c["idx"]): c["status"] for c in await play.calls(run_id)}
    assert [status for (name, _), status in rows.items() if name == "pay"] == ["succeeded"]
    assert "unknown" not in rows.values()
    assert not (await play.read(run_id)).state.claimed


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_crash_in_the_middle_of_a_map_repeats_no_finished_part(play, db, effect):
    """Everything that ended before the process died is in the ledger: the next owner makes only
    what was under way, and of writes nothing at all.
    """
    seen: list[int] = []
    under_way: set[int] = set()
    crash = asyncio.Event()

    async def before(i):
        if i >= 12:  # the last four of the step: by then the others are kept
            under_way.add(i)
            await crash.wait()
            raise Crash

    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen, effect, before))
    run_id = await play.start('{"n": 16}')
    await step(runtime, play, run_id)
    await step(runtime, play, run_id)
    version = (await play.read(run_id)).version
    working = asyncio.ensure_future(step(runtime, play, run_id))
    async with asyncio.timeout(20):
        while (  # noqa: ASYNC110
            len(under_way) < 4
            or sum(c["status"] == "succeeded" for c in await play.calls(run_id)) < 13
        ):
            await asyncio.sleep(0.02)
    crash.set()
    with pytest.raises(Crash):
        await working
    runtime.held.clear()
    assert (await play.read(run_id)).version == version
    assert sorted(seen) == list(range(12))
    await die(play, run_id)
    other = await graph_worker(db, LIST_AND_SUM, number_tools(seen, effect))
    status = await go_on(other, play, run_id)
    if effect == "read":
        assert status is Status.SUCCEEDED
        assert sorted(seen) == list(range(16))
        assert (await play.read(run_id)).state.output == str(sum(i * i for i in range(16)))
    else:  # four intents without a result: a person says what became of them
        assert status is Status.WAITING_APPROVAL
        assert sorted(seen) == list(range(12))
        assert (await play.read(run_id)).state.waiting["for"] == "unknown_effect"
    await play.check_whole(run_id)


async def test_a_large_map_takes_steps_of_bounded_size_and_so_many_calls_at_a_time(play, db):
    seen: list[int] = []
    now = most = 0

    async def before(i):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1

    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen, before=before))
    run_id = await play.start('{"n": 200}')
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert sorted(seen) == list(range(200))
    assert most == 4
    per_step: dict[int, int] = {}
    for call in await play.calls(run_id):
        per_step[call["step"]] = per_step.get(call["step"], 0) + 1
    assert max(per_step.values()) == 32
    told = [e for e in await play.events(run_id) if e["type"] == "node.progress"]
    assert [e["payload"]["done"] for e in told] == [32, 64, 96, 128, 160, 192]
    for point in await play.checkpoints(run_id):
        assert len(json.dumps(point["delta"])) < 500  # the state does not grow in them
    await play.check_whole(run_id)


MODELS = """
nodes:
  a: {kind: model, prompt: "A of ${/input}"}
  b: {kind: model, prompt: "B"}
  join: {kind: tool, tool: add_up, args: {x: ["${/nodes/a/output}", "${/nodes/b/output}"]}}
edges: ["a -> join", "b -> join"]
"""


async def test_an_answer_that_was_paid_for_is_not_asked_for_again(play, db, shared):
    """Two models side by side, one of them limited: the other's answer stays."""
    asked: list[str] = []

    async def chat(request):
        prompt = request.messages[0].text()
        asked.append(prompt)
        if prompt == "B" and asked.count("B") == 1:
            raise Limited("later", retry_after_s=0.01)

    async def add_up(ctx, x):
        return x

    runtime = await graph_worker(db, MODELS, [tool_of("add_up", add_up)], chat=chat)
    run_id = await play.start("x")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert asked.count("A of x") == 1
    assert asked.count("B") == 2
    run = await play.read(run_id)
    assert run.state.turn == 2
    assert json.loads(run.state.output or "") == ["x", "x"]


async def test_a_model_that_fails_for_now_is_tried_again_and_then_fails_its_node(play, db, shared):
    async def chat(request):
        raise Transient("no answer")

    text = MODELS.replace('prompt: "B"', 'prompt: "B", on_error: go_on').replace(
        '"A of ${/input}"', '"A of ${/input}", on_error: go_on'
    )
    text = text.replace("${/nodes/b/output}", "${/nodes/b/error/code}")

    async def add_up(ctx, x):
        return x

    runtime = await graph_worker(db, text, [tool_of("add_up", add_up)], chat=chat)
    run_id = await play.start("x")
    await sql(db, "UPDATE runs SET retry = jsonb_set(retry, '{max_attempts}', '2')")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert (await play.read(run_id)).state.output == '[null, "TRANSIENT"]'


FLAKY = """
nodes:
  try: {kind: tool, tool: flaky, retry: {times: 2, backoff_s: 0.2}, %s}
  after: {kind: tool, tool: flaky, args: {i: 1}}
edges: ["try -> after"]
"""


def flaky_tool(failures, seen, effect="write"):
    async def flaky(ctx, i=0):
        seen.append(i)
        if i == 0 and len(seen) <= failures:
            raise Permanent("not now")
        return {"i": i}

    return tool_of("flaky", flaky, effect)


async def test_a_failed_call_is_made_again_after_a_wait_without_a_worker(play, db, shared):
    seen: list[int] = []
    runtime = await graph_worker(db, FLAKY % "on_error: fail", [flaky_tool(2, seen)])
    run_id = await play.start("x")
    for tried in (1, 2):
        assert await go_on(runtime, play, run_id) is Status.DELAYED
        assert seen == [0] * tried
        assert (await play.read(run_id)).state.waiting == {"for": "timer"}
        waits = (await play.calls(run_id))[-1]
        assert (waits["status"], waits["attempt_id"]) == ("proposed", None)  # nothing is settled
        await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert seen == [0, 0, 0, 1]
    assert await node_events(play, run_id, "retried", "failed") == [("retried", "try")] * 2
    delays = [e for e in await play.events(run_id) if e["type"] == "run.delayed"]
    waited_s = [(datetime.fromisoformat(e["payload"]["until"]) - e["at"]).total_seconds()
                for e in delays]  # fmt: skip
    assert waited_s[0] <= 0.2 < waited_s[1] <= 0.4  # twice as long


async def test_a_call_that_is_made_again_is_asked_about_again(play, db, shared):
    """A wait before another attempt is no leave: policy rules on the attempt itself."""
    seen: list[int] = []
    rule = "rules: [{name: risky, match: {risk_at_least: high}, then: ask}]"
    tool = flaky_tool(1, seen)
    tool = replace(tool, spec=replace(tool.spec, risk="high"))
    runtime = await graph_worker(db, FLAKY % "on_error: fail", [tool])
    await put_policy(db, play.tenant_id, TENANT, rule, Actor("test"))
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.WAITING_APPROVAL
    await decide(db, play, run_id, "approved")
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.WAITING_APPROVAL
    assert seen == [0]


async def test_a_node_that_keeps_failing_ends_the_run_and_a_retry_tries_it_again(play, db):
    seen: list[int] = []
    text = (FLAKY % "on_error: fail").replace("times: 2", "times: 0")
    runtime = await graph_worker(db, text, [flaky_tool(1, seen)])
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    run = await play.read(run_id)
    assert run.state.stop_reason == "node_failed"
    assert run.state.error["detail"] == {"node": "try", "place": "/graph/nodes/try"}
    again = (await retry_run(db, play.tenant_id, run_id, created_by="t")).run_id
    assert await go_on(runtime, play, again) is Status.SUCCEEDED
    assert seen == [0, 0, 1]
    await play.check_whole(run_id)


async def test_a_failure_may_be_a_result_like_any_other(play, db):
    seen: list[int] = []
    text = (FLAKY % "on_error: go_on").replace("times: 2", "times: 0")
    runtime = await graph_worker(db, text, [flaky_tool(9, seen)])
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert await node_events(play, run_id, "failed", "completed") == [
        ("failed", "try"),
        ("completed", "after"),
    ]


WAITS = """
nodes:
  rest: {kind: wait, seconds: "${/input/s}"}
  ask: {kind: approval, ask: "Send ${/input/s}?", show: {s: "${/input/s}"}, roles: [admin], %s}
  side: {kind: tool, tool: add_up, args: {x: [1]}}
  side2: {kind: tool, tool: add_up, args: {x: ["${/nodes/side/output}"]}}
  end: {kind: tool, tool: add_up, args: {x: ["${/nodes/ask/output/show/s?}"]}}
edges: ["rest -> end", "ask -> end", "side -> side2 -> end"]
output: {end: "${/nodes/end/output}", asked: "${/nodes/ask/status}"}
"""


async def decide(db, play, run_id, verdict, role="admin", **more):
    (row,) = await sql(
        db, "SELECT * FROM approvals WHERE run_id = :r AND status = 'pending'", r=run_id
    )
    approver = Approver(Actor("key_bob"), role)
    said = Decide(verdict, row["digest"], **more)
    return (await decide_approval(db, play.tenant_id, row["id"], said, approver=approver))[0]


def sum_tool():
    async def add_up(ctx, x):
        return sum(v or 0 for v in x)

    return tool_of("add_up", add_up)


async def test_what_waits_does_not_hold_up_another_branch(play, db, shared):
    """A wait and a question begin when the other branches can do nothing more without them; then a
    person and the clock are awaited without a worker.
    """
    runtime = await graph_worker(
        db, WAITS % "on_error: fail", [sum_tool(), *wait.build(Settings())]
    )
    run_id = await play.start('{"s": 0.3}')
    assert await go_on(runtime, play, run_id) is Status.WAITING_APPROVAL
    assert await node_events(play, run_id, "completed") == [
        ("completed", "side"),
        ("completed", "side2"),
    ]
    shown = await sql(db, "SELECT arguments, approver_roles, shown FROM approvals")
    assert shown[0]["arguments"] == {"ask": "Send 0.3?", "show": {"s": 0.3}}
    assert shown[0]["approver_roles"] == ["admin"]
    assert shown[0]["shown"]["reasons"] == ["Send 0.3?"]
    with pytest.raises(Denied):
        await decide(db, play, run_id, "approved", role="approver")
    await decide(db, play, run_id, "approved")
    await admit(shared, play, run_id)
    status = await go_on(runtime, play, run_id)
    if status is Status.DELAYED:
        await admit(shared, play, run_id)
        status = await go_on(runtime, play, run_id)
    assert status is Status.SUCCEEDED
    output = json.loads((await play.read(run_id)).state.output or "")
    assert output == {"end": 0.3, "asked": "completed"}
    await play.check_whole(run_id)


@pytest.mark.parametrize("policy", ["fail", "go_on"])
async def test_a_no_is_a_failure_of_the_node_that_asked(play, db, shared, policy):
    tools = [sum_tool(), *wait.build(Settings())]
    runtime = await graph_worker(db, WAITS % f"on_error: {policy}", tools)
    run_id = await play.start('{"s": 0}')
    assert await go_on(runtime, play, run_id) is Status.WAITING_APPROVAL
    await decide(db, play, run_id, "denied", reason="not today")
    await admit(shared, play, run_id)
    status = await go_on(runtime, play, run_id)
    run = await play.read(run_id)
    if policy == "fail":
        assert status is Status.FAILED
        assert run.state.error["code"] == "APPROVAL_DENIED"
        assert run.state.error["detail"]["node"] == "ask"
    else:
        assert status is Status.SUCCEEDED
        assert json.loads(run.state.output or "") == {"end": 0, "asked": "failed"}


AGENTS = """
nodes:
  many: {kind: map, over: [1, 2, 3], parallel: 2, do: {agent: other, input: {part: "${/item}"}}}
"""


async def test_other_agents_work_in_runs_of_their_own(play, db, shared):
    runtime = await graph_worker(db, AGENTS, spawn_run.build(Settings()))
    await sql(
        db,
        "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) "
        "VALUES (:t, 'other', 1, cast(:s AS jsonb), '', '')",
        t=play.tenant_id, s=json.dumps({"model": "fake/x"}),
    )  # fmt: skip
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.WAITING_CHILDREN
    children = await sql(
        db, "SELECT id, input FROM runs WHERE parent_run_id = :p ORDER BY parent_idx", p=run_id
    )
    assert [json.loads(c["input"]) for c in children] == [{"part": i} for i in (1, 2, 3)]
    for child in children:
        await step(runtime, play, child["id"])
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    run = await play.read(run_id)
    assert json.loads(run.state.output or "") == ["x", "x", "x"]
    await play.check_whole(run_id)


async def test_a_cap_on_model_answers_ends_a_graph_run(play, db):
    text = """
nodes:
  each: {kind: map, over: [1, 2, 3], parallel: 1, do: {prompt: "say ${/item}"}}
  last: {kind: model, prompt: "sum up"}
edges: ["each -> last"]
"""
    runtime = await graph_worker(db, text, spec={"max_turns": 3})
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    run = await play.read(run_id)
    assert (run.state.stop_reason, run.state.turn) == ("max_iterations_exceeded", 3)
    again = (await retry_run(db, play.tenant_id, run_id, created_by="t")).run_id
    assert await go_on(runtime, play, again) is Status.SUCCEEDED
    assert (await play.read(again)).state.turn == 4


async def test_no_model_is_asked_once_the_budget_is_used_up(play, db):
    """Within one step too: what the answers before it cost counts at once."""
    asked: list[str] = []

    async def chat(request):
        asked.append(request.messages[0].text())

    text = """
nodes:
  each: {kind: map, over: [1, 2, 3, 4], parallel: 1, on_error: go_on, do: {prompt: "${/item}"}}
"""
    runtime = await graph_worker(db, text, chat=chat, spec={"max_tokens_total": 25})
    models: Any = runtime.models
    models.usage = Usage(7, 3)
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    assert asked == ["1", "2", "3"]
    run = await play.read(run_id)
    assert run.state.stop_reason == "token_budget_exceeded"
    assert run.state.input_tokens + run.state.output_tokens == 30


async def test_a_deadline_ends_a_graph_run(play, db):
    async def before(i):
        await asyncio.sleep(30)

    runtime = await graph_worker(db, LIST_AND_SUM, number_tools([], before=before))
    run_id = await play.start('{"n": 3}', timeout_s=1)
    assert await go_on(runtime, play, run_id) is Status.FAILED
    assert (await play.read(run_id)).state.stop_reason == "deadline_exceeded"


async def test_a_cancel_ends_a_graph_run_in_the_middle_of_a_step(play, db):
    seen: list[int] = []

    async def before(i):
        if i == 1:
            await cancel_run(db, play.tenant_id, run_id, by="t")
            (held,) = runtime.held.values()
            held.cancel()

    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen, before=before))
    run_id = await play.start('{"n": 9}')
    assert await go_on(runtime, play, run_id) is Status.CANCELLED
    statuses = {c["status"] for c in await play.calls(run_id)}
    assert statuses <= {"succeeded", "cancelled"}
    await play.check_whole(run_id)


async def test_a_pause_rests_between_two_steps(play, db, shared):
    seen: list[int] = []

    async def before(i):
        if i == 0:
            await pause_run(db, play.tenant_id, run_id, by="t")

    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen, before=before))
    run_id = await play.start('{"n": 40}')
    assert await go_on(runtime, play, run_id) is Status.PAUSED
    assert sorted(seen) == list(range(32))
    await resume_run(db, play.tenant_id, run_id, by="t")
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert sorted(seen) == list(range(40))


async def test_a_fork_goes_on_from_any_checkpoint_without_repeating_what_was_done(play, db):
    seen: list[int] = []
    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen))
    run_id = await play.start('{"n": 3}')
    await go_on(runtime, play, run_id)
    steps = (await play.read(run_id)).state.step
    for at in range(2, steps):
        fork = (await fork_run(db, play.tenant_id, run_id, ForkRun(step=at))).run_id
        assert await go_on(runtime, play, fork) is Status.SUCCEEDED
        assert (await play.read(fork)).state.output == "5"
    assert sorted(seen) == [0, 1, 2]  # the ledger has the results of all of them
    other = (await fork_run(db, play.tenant_id, run_id, ForkRun(step=0, input='{"n": 4}'))).run_id
    assert await go_on(runtime, play, other) is Status.SUCCEEDED
    assert (await play.read(other)).state.output == "14"
    dry = (await fork_run(db, play.tenant_id, run_id, ForkRun(dry_run=True))).run_id
    assert await go_on(runtime, play, dry) is Status.SUCCEEDED
    assert len(seen) == 7


PAID = """
nodes:
  ask: {kind: approval, ask: "Pay ${/input}?"}
  pay: {kind: tool, tool: pay, args: {i: "${/input}"}}
edges: ["ask -> pay"]
"""


@pytest.mark.parametrize("verdict", ["approved", "denied"])
async def test_what_a_person_said_to_a_run_is_not_said_to_its_fork(play, db, shared, verdict):
    """INV19: a yes is used once. A fork from before it pays again, and so asks again."""
    paid: list[int] = []

    async def pay(ctx, i):
        paid.append(i)
        return i

    runtime = await graph_worker(db, PAID, [tool_of("pay", pay, "write")])
    run_id = await play.start("7")
    assert await go_on(runtime, play, run_id) is Status.WAITING_APPROVAL
    await decide(db, play, run_id, verdict)
    await admit(shared, play, run_id)
    await go_on(runtime, play, run_id)
    assert paid == ([7] if verdict == "approved" else [])
    fork = (await fork_run(db, play.tenant_id, run_id, ForkRun(step=1))).run_id
    assert await go_on(runtime, play, fork) is Status.WAITING_APPROVAL
    await decide(db, play, fork, "approved")
    await admit(shared, play, fork)
    assert await go_on(runtime, play, fork) is Status.SUCCEEDED
    assert paid == ([7, 7] if verdict == "approved" else [7])
    await play.check_whole(fork)
    if verdict == "approved":  # behind the yes there is nothing to ask, and nothing is paid again
        later = (await fork_run(db, play.tenant_id, run_id, ForkRun(step=2))).run_id
        assert await go_on(runtime, play, later) is Status.SUCCEEDED
        assert paid == [7, 7]


async def test_what_model_nodes_take_is_reserved_and_counts_for_the_day(play, db):
    reserved: list[int] = []

    async def chat(request):
        (row,) = await sql(
            db,
            "SELECT reserved_tokens AS r FROM tenant_days WHERE tenant_id = :t",
            t=play.tenant_id,
        )
        reserved.append(row["r"])

    async def add_up(ctx, x):
        return x

    runtime = await graph_worker(db, MODELS, [tool_of("add_up", add_up)], chat=chat)
    models: Any = runtime.models
    models.prices, models.usage = NoPrices(), Usage(7, 3)
    await limit(play, tokens_per_day=5_000)
    run_id = await play.start("x")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert len(reserved) == 2
    answers = await read_answers(db, play.tenant_id, run_id, steps=[2])
    assert (answers[2]["input_tokens"], answers[2]["output_tokens"]) == (14, 6)
    assert all(2 * 1024 < r < 2 * 1024 + 20 for r in reserved)  # the most that two answers take
    row = await account(play)
    assert (row["tokens"], row["reserved_tokens"]) == (20, 0)
