"""What a worker does about tools that fail: tries again, breaks the circuit, calls another,
explains.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.contracts.tool import NewArtifact, ToolOutput
from harness_common.core.errors import Denied, Invalid, Limited, Transient
from harness_common.core.inputs import Admit, TimerDue
from harness_common.core.policy import Decision, Verdict
from harness_common.core.run import Status
from harness_common.settings import ToolSettings
from harness_common.store.artifacts import read_artifact
from harness_worker.steps.tools import scope_of
from harness_worker.tools.breakers import GO, Breakers, Leave, Shut
from harness_worker.tools.call import PendingCall
from harness_worker.tools.gate import Gate
from harness_worker.tools.runner import ToolRunner
from tests.store.play import WHEN, sql
from tests.worker.runtime import claim_tools_step
from tests.worker.tool_steps import a_tool, a_worker, asked, die, events, work


class Script:
    """A tool that does what it is told, call by call; the last thing for ever."""

    def __init__(self, *steps):
        self.steps, self.calls, self.attempts = list(steps), 0, []

    async def __call__(self, ctx, **args):
        step = self.steps[min(self.calls, len(self.steps) - 1)]
        self.calls += 1
        self.attempts.append(ctx.attempt)
        if isinstance(step, Exception):
            raise step
        if step == "hang":
            await asyncio.sleep(60)
        return step

    def tool(self, name, effect, **fields):
        async def fn(ctx, **args):
            return await self(ctx, **args)

        return a_tool(name, effect, fn, **fields)


CUT = Transient("the line was cut")


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("effect", "fields", "calls"),
    [
        ("read", {}, 2),
        ("read", {"max_attempts": 1}, 1),
        ("read", {"max_attempts": 4}, 4),
        ("idempotent", {}, 1),
        ("idempotent", {"max_attempts": 3}, 3),
        ("write", {}, 1),
        ("write", {"max_attempts": 3}, 1),
    ],
)
async def test_how_often_a_call_is_tried(play, db, effect, fields, calls):
    script = Script(CUT)
    runtime = await a_worker(db, [script.tool("t", effect, **fields)], breaker_failures=100)
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    assert script.calls == calls
    assert script.attempts == list(range(1, calls + 1))
    assert (row["status"], row["error_type"], row["attempt"]) == ("failed", "TRANSIENT", calls)
    retried = await events(play, run_id, "tool.retried")
    assert len(retried) == len(row["failed_attempts"] or ()) == calls - 1
    for one, told in zip(row["failed_attempts"] or (), retried, strict=True):
        assert one["error_type"] == "TRANSIENT"
        assert one["why"] == "the line was cut"
        assert told["payload"]["attempt"] == one["attempt"]
        assert 0 < told["payload"]["retry_in_s"] <= 1.5
    await play.check_whole(run_id)


async def test_a_second_attempt_that_works_is_the_result(play, db):
    script = Script("hang", "here")
    runtime = await a_worker(db, [script.tool("t", "read", timeout_s=0.1)])
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["result"], row["attempt"]) == ("succeeded", "here", 2)
    assert row["failed_attempts"][0]["error_type"] == "TIMEOUT"


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (Limited("slow down", retry_after_s=0.2), 2),
        (Limited("slow down", retry_after_s=60), 1),
        (Limited("slow down"), 1),
        (Denied("no"), 1),
        (Invalid("no such city"), 1),
        (KeyError("x"), 1),
    ],
)
async def test_what_is_tried_again(play, db, error, calls):
    """A wait that is long is not made inside a step, and a refusal is an answer."""
    script = Script(error)
    runtime = await a_worker(db, [script.tool("t", "read")])
    await work(runtime, play, await asked(play, ("t", {})))
    assert script.calls == calls


# ── breakers ─────────────────────────────────────────────────────────────────────────────────────

QUICK = {"breaker_failures": 3, "breaker_open_s": 60}


async def its_time_comes(db, *breakers):
    """Let the time of every open breaker be over, also by a worker's clock that lags a little."""
    await sql(
        db,
        "UPDATE tool_breakers SET until = clock_timestamp() - interval '10 seconds' "
        "WHERE state = 'open'",
    )
    for one in breakers:
        await one.look()


async def test_a_breaker_opens_tries_once_and_closes(play, db):
    script = Script(CUT)
    runtime = await a_worker(db, [script.tool("t", "read", max_attempts=1)], **QUICK)

    async def call():
        run_id = await asked(play, ("t", {}))
        (row,) = await work(runtime, play, run_id)
        seen = [e["type"] for e in await events(play, run_id, "tool.breaker")]
        return row["error_type"], seen

    assert [await call() for _ in range(2)] == [("TRANSIENT", [])] * 2
    assert await call() == ("TRANSIENT", ["tool.breaker_opened"])
    assert await call() == ("TOOL_UNAVAILABLE", [])
    assert script.calls == 3, "an open breaker calls nothing"
    (row,) = await sql(db, "SELECT * FROM tool_breakers")
    assert (row["state"], row["opens"], row["reason"]) == ("open", 1, "TRANSIENT")

    await its_time_comes(db, runtime.breakers)
    assert await call() == ("TRANSIENT", ["tool.breaker_opened"]), "the probe fails"
    (again,) = await sql(db, "SELECT * FROM tool_breakers")
    first_s = (row["until"] - row["opened_at"]).total_seconds()
    second_s = (again["until"] - again["updated_at"]).total_seconds()
    assert second_s == pytest.approx(2 * first_s, rel=0.01), "each time for twice as long"
    assert script.calls == 4

    script.steps = ["here"]
    await its_time_comes(db, runtime.breakers)
    assert await call() == (None, ["tool.breaker_closed"])
    assert await call() == (None, [])
    assert await sql(db, "SELECT * FROM tool_breakers") == []
    assert script.calls == 6


async def test_a_call_that_changes_nothing_waits_for_a_breaker_that_is_tried_again_soon(play, db):
    """It holds no worker meanwhile, asks the breaker anew, and the model is told of nothing."""
    script = Script(CUT)
    resumed = []

    async def fn(ctx, **args):
        resumed.append(ctx.resumed)
        return await script(ctx, **args)

    tool = a_tool("t", "read", fn, max_attempts=1)
    runtime = await a_worker(db, [tool], breaker_failures=1, breaker_open_s=10)
    await work(runtime, play, await asked(play, ("t", {})))
    waits = [await asked(play, ("t", {})) for _ in range(2)]
    for run_id in waits:
        (row,) = await work(runtime, play, run_id)
        assert (row["status"], row["result"]) == ("running", "breaker")
        run = await play.read(run_id)
        assert (run.state.status, run.claim_id) == (Status.DELAYED, None)
    assert script.calls == 1
    script.steps = ["here"]
    await its_time_comes(db, runtime.breakers)
    await sql(db, "UPDATE runs SET not_before = :w WHERE not_before IS NOT NULL", w=WHEN)
    for run_id in waits:
        for one in (TimerDue(), Admit()):
            assert await play.apply(await play.read(run_id), one) is not None
        (row,) = await work(runtime, play, run_id)
        assert (row["status"], row["result"]) == ("succeeded", "here")
    assert resumed == [None] * 3, "what the call waited for was nothing of its own"
    assert await sql(db, "SELECT * FROM tool_breakers") == []


async def test_who_tries_a_broken_tool_does_so_with_all_its_attempts(play, db):
    """One that works with the second attempt, as any read may, closes the breaker."""
    script = Script(CUT)
    tool = script.tool("t", "read", max_attempts=2)
    runtime = await a_worker(db, [tool], breaker_failures=2, breaker_open_s=60)
    await work(runtime, play, await asked(play, ("t", {})))
    assert runtime.breakers.open
    await its_time_comes(db, runtime.breakers)
    script.steps = [*[CUT] * (script.calls + 1), "here"]
    (row,) = await work(runtime, play, await asked(play, ("t", {})))
    assert (row["status"], row["attempt"]) == ("succeeded", 2)
    assert await sql(db, "SELECT * FROM tool_breakers") == []


async def test_calls_wait_shortly_for_the_one_that_tries_a_broken_tool(play, db):
    script = Script(CUT)
    tool = script.tool("t", "read", max_attempts=1)
    runtime = await a_worker(db, [tool], breaker_failures=1, breaker_open_s=10)
    await work(runtime, play, await asked(play, ("t", {})))
    await its_time_comes(db, runtime.breakers)
    assert await runtime.breakers.leave(play.tenant_id, "t", 60) != GO, "this one tries it"
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["result"]) == ("running", "breaker")
    wait_s = (row["resume_at"] - runtime.clock.now()).total_seconds()
    assert 0 < wait_s <= 1, "not for as long as it may take"
    assert script.calls == 1


@pytest.mark.parametrize(("effect", "wait_s"), [("write", 15), ("read", 0), ("read", 5)])
async def test_who_does_not_wait_for_a_breaker_is_told_at_once(play, db, effect, wait_s):
    """A write would look begun while it waits, and a long wait is for the model to plan with."""
    script = Script(CUT)
    tool = script.tool("t", effect, max_attempts=1)
    rule = {"breaker_failures": 1, "breaker_open_s": 10, "breaker_wait_s": wait_s}
    runtime = await a_worker(db, [tool], **rule)
    await work(runtime, play, await asked(play, ("t", {})))
    (row,) = await work(runtime, play, await asked(play, ("t", {})))
    assert row["error_type"] == "TOOL_UNAVAILABLE"


async def test_the_answer_of_an_open_breaker_says_when_it_is_tried_again(play, db):
    script = Script(CUT)
    runtime = await a_worker(db, [script.tool("t", "write")], breaker_failures=1, breaker_open_s=60)
    await work(runtime, play, await asked(play, ("t", {})))
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    assert row["error_type"] == "TOOL_UNAVAILABLE"
    assert row["attempt_id"] is None, "no intent is written for a call that is not made"
    assert "in 60 s" in row["result"] or "in 59 s" in row["result"]
    (shut,) = runtime.breakers.open.values()
    assert shut.until.isoformat(timespec="seconds").replace("+00:00", "Z") in row["result"]


async def test_a_breaker_is_of_a_tenant_and_of_a_tool(play, db):
    script = Script(CUT)
    runtime = await a_worker(db, [script.tool("t", "write")], breaker_failures=1)
    await work(runtime, play, await asked(play, ("t", {})))
    assert list(runtime.breakers.open) == [(play.tenant_id, "t")]
    assert await runtime.breakers.leave(runtime.worker, "t", 1) is GO
    assert await runtime.breakers.leave(play.tenant_id, "other", 1) is GO


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (CUT, True),
        (KeyError("x"), True),
        ("hang", True),
        (Denied("no"), False),
        (Invalid("bad city"), False),
        (Limited("slow down"), False),
        ("fine", False),
    ],
)
async def test_only_faults_of_the_tool_open_its_breaker(play, db, error, opens):
    script = Script(error)
    tool = script.tool("t", "read", max_attempts=1, timeout_s=0.05)
    runtime = await a_worker(db, [tool], breaker_failures=2)
    await work(runtime, play, await asked(play, *[("t", {"i": i}) for i in range(4)]))
    assert bool(runtime.breakers.open) is opens


async def test_wrong_arguments_do_not_open_a_breaker(play, db):
    script = Script("fine")
    runtime = await a_worker(db, [script.tool("t", "read")], breaker_failures=1)
    await work(runtime, play, await asked(play, *[("t", {"i": "no number"})] * 3))
    assert not runtime.breakers.open
    assert script.calls == 0


class Wire:
    """The broadcast channel, in memory."""

    def __init__(self):
        self.listeners = []

    async def breaker(self, told):
        for listener in self.listeners:
            listener.heard(json.loads(json.dumps(told)))
        return True


RULE = ToolSettings(breaker_failures=4, breaker_open_s=60)


async def processes(runtime, db, n, wire=None):
    made = [Breakers(db, wire, runtime.clock.now, RULE) for _ in range(n)]
    if wire is not None:
        wire.listeners += made
    return made


async def test_processes_share_a_breaker(play, db):
    """Faults of all count together; one opens it, all hold back, one probes, all go on."""
    wire = Wire()
    made = await processes(await a_worker(db, []), db, 3, wire)
    opened = await asyncio.gather(
        *(one.failed(play.tenant_id, "t", "TIMEOUT") for one in made for _ in range(2))
    )
    assert sum(shut is not None for shut in opened) == 1, "one fault opened it"
    await asyncio.sleep(0.05)
    leaves = [await one.leave(play.tenant_id, "t", 1) for one in made]
    assert all(isinstance(leave, Shut) for leave in leaves)
    await its_time_comes(db, *made)
    leaves = await asyncio.gather(
        *(one.leave(play.tenant_id, "t", 1) for one in made for _ in range(5))
    )
    probes = [leave for leave in leaves if isinstance(leave, Leave)]
    assert len(probes) == 1
    assert probes[0].probe is not None
    closed = [await one.worked(play.tenant_id, "t", probes[0]) for one in made]
    assert closed.count(True) == 1
    await asyncio.sleep(0.05)
    assert [await one.leave(play.tenant_id, "t", 1) for one in made] == [GO] * 3


async def test_a_deaf_process_and_a_new_one_ask_postgres(play, db):
    first, second, third = await processes(await a_worker(db, []), db, 3)
    for _ in range(4):
        await first.failed(play.tenant_id, "t", "TIMEOUT")
    assert await second.leave(play.tenant_id, "t", 1) is GO, "nothing was heard"
    second.deaf = True
    assert isinstance(await second.leave(play.tenant_id, "t", 1), Shut)
    await third.look()
    assert isinstance(await third.leave(play.tenant_id, "t", 1), Shut)


async def test_a_probe_that_never_answers_holds_nobody_back_for_ever(play, db):
    (one,) = await processes(await a_worker(db, []), db, 1)
    for _ in range(4):
        await one.failed(play.tenant_id, "t", "TIMEOUT")
    await its_time_comes(db, one)
    lost = await one.leave(play.tenant_id, "t", 1)
    assert isinstance(lost, Leave)
    assert isinstance(await one.leave(play.tenant_id, "t", 1), Shut)
    await sql(db, "UPDATE tool_breakers SET probe_until = clock_timestamp() - interval '1 s'")
    await one.look()
    again = await one.leave(play.tenant_id, "t", 1)
    assert isinstance(again, Leave)
    assert again.probe not in (None, lost.probe)
    assert await one.worked(play.tenant_id, "t", lost) is False, "a late probe closes nothing"


async def test_a_tool_that_mostly_works_stays_in_use(play, db):
    (one,) = await processes(await a_worker(db, []), db, 1)
    for _ in range(10):
        await one.failed(play.tenant_id, "t", "TIMEOUT")
        for _ in range(3):
            await one.worked(play.tenant_id, "t")
        assert not one.open
    (row,) = await sql(db, "SELECT failures, successes FROM tool_breakers")
    assert (row["failures"], row["successes"]) == (10, 27)


async def test_faults_of_long_ago_do_not_count(play, db):
    (one,) = await processes(await a_worker(db, []), db, 1)
    for _ in range(3):
        await one.failed(play.tenant_id, "t", "TIMEOUT")
    await sql(db, "UPDATE tool_breakers SET window_at = window_at - interval '31 seconds'")
    await one.failed(play.tenant_id, "t", "TIMEOUT")
    assert not one.open


async def test_many_faults_at_once_are_few_statements(play, db):
    (one,) = await processes(await a_worker(db, []), db, 1)
    opened = await asyncio.gather(
        *(one.failed(play.tenant_id, f"t{i % 3}", "TIMEOUT") for i in range(500))
    )
    assert sum(shut is not None for shut in opened) == 3
    assert one._faults.batches <= 4


# ── fallbacks ────────────────────────────────────────────────────────────────────────────────────


async def test_a_read_that_fails_is_answered_by_its_fallback(play, db):
    first, second = Script(CUT), Script("from elsewhere")
    made = [
        first.tool("a", "read", fallback="b", max_attempts=1),
        second.tool("b", "read", untrusted_output=True),
    ]
    runtime = await a_worker(db, made, **QUICK)
    for n in range(1, 6):
        run_id = await asked(play, ("a", {"x": n}))
        (row,) = await work(runtime, play, run_id)
        assert row["result"] == "from elsewhere\n[from the fallback tool b]"
        assert (row["name"], row["status"], row["served_by"]) == ("a", "succeeded", "b")
        assert row["trust"] == "untrusted", "the labels are those of the tool that answered"
        (told,) = await events(play, run_id, "tool.degraded")
        assert (told["payload"]["tool"], told["payload"]["fallback"]) == ("a", "b")
    assert (first.calls, second.calls) == (3, 5)


async def test_a_recorded_answer_of_a_fallback_is_given_back(play, db):
    """Its fingerprint is that of the tool which gave it."""
    first, second = Script(CUT), Script("did it")
    made = [first.tool("a", "write", fallback="b"), second.tool("b", "write")]
    runtime = await a_worker(db, made, breaker_failures=1, breaker_open_s=60)
    await work(runtime, play, await asked(play, ("a", {})))
    run_id = await asked(play, ("a", {}))
    ctx = await claim_tools_step(runtime, play, run_id)
    runner = ToolRunner(await scope_of(ctx))
    outcome = await runner.run(PendingCall.from_row(ctx.calls[0]))
    assert outcome.content == "did it\n[from the fallback tool b]"
    await die(play, run_id)
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["served_by"], second.calls, first.calls) == ("succeeded", "b", 1, 1)
    assert (await play.messages(run_id))[-1].content[0].content == outcome.content


async def test_a_write_that_failed_is_not_followed_by_its_fallback(play, db):
    """INV3: the effect may have happened; only a call that was not begun may go elsewhere."""
    first, second = Script(RuntimeError("cut")), Script("did it")
    made = [first.tool("a", "write", fallback="b"), second.tool("b", "write")]
    runtime = await a_worker(db, made)
    (row,) = await work(runtime, play, await asked(play, ("a", {})))
    assert (row["status"], second.calls) == ("unknown", 0)


@pytest.mark.parametrize(
    ("fields", "arguments", "why"),
    [
        ({"effect": "write"}, {}, "its effect is write, more than read"),
        ({"input_schema": {"type": "object", "required": ["y"]}}, {}, "`y`: is required"),
        ({"name": "c"}, {}, "there is no tool 'b' here"),
    ],
)
async def test_a_fallback_that_may_not_be_called_is_not(play, db, fields, arguments, why):
    first, second = Script(CUT), Script("here")
    other = second.tool(**{"name": "b", "effect": "read"} | fields)
    runtime = await a_worker(db, [first.tool("a", "read", fallback="b", max_attempts=1), other])
    (row,) = await work(runtime, play, await asked(play, ("a", arguments)))
    assert (row["status"], row["error_type"], second.calls) == ("failed", "TRANSIENT", 0)
    assert "Its fallback b was not called" in row["result"]
    assert why in row["result"]


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.ASK])
async def test_policy_is_asked_about_the_fallback(play, db, verdict):
    asked_about = []

    class Asked(Gate):
        async def decide(self, call, tool):
            asked_about.append((call.name, tool.spec.name))
            return Decision(verdict if tool.spec.name == "b" else Verdict.ALLOW, ("not that",))

    first, second = Script(CUT), Script("here")
    made = [first.tool("a", "read", fallback="b", max_attempts=1), second.tool("b", "read")]
    runtime = await a_worker(db, made)
    run_id = await asked(play, ("a", {}))
    ctx = await claim_tools_step(runtime, play, run_id)
    outcome = await ToolRunner(await scope_of(ctx), Asked(await scope_of(ctx))).run(
        PendingCall.from_row(ctx.calls[0])
    )
    assert asked_about == [("a", "a"), ("b", "b")]
    assert second.calls == 0
    assert "not that" in outcome.content


async def test_one_failing_tool_does_not_drag_the_others(play, db):
    """D5: without breakers and fallbacks a run does as well as its worst tool (99.2 → 68.7 %)."""
    took: dict[int, float] = {}
    done: Counter[tuple[str, str]] = Counter()
    hanging = Script("hang")
    made = [
        hanging.tool("hangs", "read", timeout_s=2, fallback="spare"),
        Script(CUT).tool("breaks", "read", timeout_s=0.5),
        Script("ok").tool("spare", "read"),
        Script("ok").tool("works", "read"),
    ]
    runtime = await a_worker(db, made, breaker_failures=4, breaker_open_s=600)

    async def one(n):
        calls: tuple[tuple[str, dict[str, int]], ...] = (
            ("hangs", {"i": n}),
            ("breaks", {"i": n}),
            ("works", {"i": n}),
            ("works", {}),
        )
        run_id = await asked(play, *calls)
        begun = asyncio.get_running_loop().time()
        for row in await work(runtime, play, run_id):
            done[row["name"], row["status"]] += 1
        took[n] = asyncio.get_running_loop().time() - begun

    for start in range(0, 60, 6):
        await asyncio.gather(*(one(n) for n in range(start, start + 6)))
    assert done["works", "succeeded"] == 120
    assert done["hangs", "succeeded"] == 60, "its fallback answers"
    assert done["breaks", "failed"] == 60
    late = sorted(took[n] for n in range(12, 60))
    assert late[len(late) // 2] < 2, "nobody waits for the tool that hangs"
    assert hanging.calls <= 12, "those of the first round, each tried twice at most"


# ── dirty results ────────────────────────────────────────────────────────────────────────────────

CITY = {
    "type": "object",
    "required": ["city", "degrees"],
    "properties": {"city": {"type": "string"}, "degrees": {"type": "number"}},
}


async def result_of(play, db, tmp_path, value, effect="read", **more):
    settings = {k: more.pop(k) for k in list(more) if k.startswith("max_result")}
    runtime = await a_worker(db, [Script(value).tool("t", effect, **more)], **settings)
    runtime.blobs = LocalBlobs(tmp_path)
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    raw = None
    if row["artifacts"]:
        _, raw = await read_artifact(db, runtime.blobs, play.tenant_id, row["artifacts"][0])
    return row, raw


@pytest.mark.parametrize(
    "value",
    [
        {"city": "Oslo", "degrees": 3},
        '{"city": "Oslo", "degrees": 3.5, "more": true}',
        ToolOutput({"city": "Oslo", "degrees": -1}),
    ],
)
async def test_a_result_as_promised(play, db, tmp_path, value):
    row, raw = await result_of(play, db, tmp_path, value, output_schema=CITY)
    assert (row["status"], raw) == ("succeeded", None)


@pytest.mark.parametrize(
    ("value", "raw", "why"),
    [
        ({"city": "Oslo"}, b'{"city":"Oslo"}', "`degrees`: is required and missing"),
        ({"city": 3, "degrees": 3}, b'{"city":3,"degrees":3}', "`city`: must be of type string"),
        ("<html>gateway</html>", b"<html>gateway</html>", "its result is not JSON"),
        ([1], b"[1]", "`result`: must be of type object, not array"),
        ({"city": "x", "degrees": float("nan")}, None, "`degrees`: must be a finite number"),
    ],
)
async def test_a_result_that_breaks_its_promise_is_kept_and_explained(
    play, db, tmp_path, value, raw, why
):
    row, kept = await result_of(play, db, tmp_path, value, output_schema=CITY)
    assert (row["status"], row["error_type"]) == ("failed", "BAD_RESULT")
    assert why in row["result"]
    assert row["artifacts"][0] in row["result"]
    assert '"required":["city","degrees"]' in row["result"], "it says what was expected"
    assert raw in (kept, None)


@pytest.mark.parametrize(
    ("value", "raw", "why"),
    [
        (b"\xff\xfe", b"\xff\xfe", "not UTF-8"),
        ({1, 2}, b"{1, 2}", "not JSON"),
        ("x" * 3000, b"x" * 2000, "has 3000 bytes, and 2000 are allowed"),
        ("é" * 1500, ("é" * 1000).encode(), "has 3000 bytes"),
    ],
)
async def test_what_is_no_text_is_kept_and_explained(play, db, tmp_path, value, raw, why):
    row, kept = await result_of(play, db, tmp_path, value, max_result_bytes=2000)
    assert (row["status"], row["error_type"], kept) == ("failed", "BAD_RESULT", raw)
    assert why in row["result"]
    assert "changed stands" not in row["result"]


async def test_text_that_came_as_bytes_is_text(play, db, tmp_path):
    row, _ = await result_of(play, db, tmp_path, "grüße".encode())
    assert (row["status"], row["result"]) == ("succeeded", "grüße")


async def test_a_bad_result_of_a_write_says_that_its_effect_stands(play, db, tmp_path):
    row, _ = await result_of(play, db, tmp_path, b"\xff", effect="write")
    assert (row["status"], row["error_type"]) == ("failed", "BAD_RESULT")
    assert "what it changed stands" in row["result"]


class NoBlobs:
    """A bucket that is away."""

    async def put(self, data):
        raise Transient("the bucket is away", code="BLOBS_UNAVAILABLE")


@pytest.mark.parametrize(("effect", "status"), [("read", "failed"), ("write", "unknown")])
async def test_a_write_whose_result_cannot_be_kept_has_not_failed(play, db, effect, status):
    """INV3: told of a failure that may pass, the model would ask for the effect again."""
    done = []

    async def pay(ctx, **args):
        done.append("paid")
        return ToolOutput("paid", (NewArtifact("receipt.txt", "text/plain", b"1"),))

    runtime = await a_worker(db, [a_tool("pay", effect, pay, max_attempts=1)])
    blobs: Any = NoBlobs()
    runtime.blobs = blobs
    run_id = await asked(play, ("pay", {}))
    (row,) = await work(runtime, play, run_id)
    assert done == ["paid"]
    assert (row["status"], row["error_type"]) == (status, "TRANSIENT")
    assert "the bucket is away" in row["result"]


async def test_what_a_tool_says_of_its_failure_carries_no_credential(play, db):
    script = Script(RuntimeError("401 for Bearer abcdef0123456789 at https://u:pw123@host/x"), CUT)
    runtime = await a_worker(db, [script.tool("t", "read")], breaker_failures=1)
    run_id = await asked(play, ("t", {}))
    (row,) = await work(runtime, play, run_id)
    assert "RuntimeError" in row["result"]
    everything = str([row, await events(play, run_id, ""), await sql(db, "TABLE tool_breakers")])
    assert "abcdef0123456789" not in everything
    assert "pw123" not in everything
    assert row["duration_ms"] > 0


# ── cached reads ─────────────────────────────────────────────────────────────────────────────────


async def test_a_read_is_used_again_within_its_session_and_time(play, db):
    script = Script("first", "second", "third", "fourth", "fifth")
    runtime = await a_worker(db, [script.tool("t", "read", cache_s=60)])

    async def call(x=1, **more):
        run_id = await asked(play, ("t", {"x": x}), **more)
        return (await work(runtime, play, run_id))[0]

    one = await call()
    run = await play.read(one["run_id"])
    await sql(
        db, "UPDATE runs SET status = 'succeeded', finished_at = now() WHERE id = :r", r=run.id
    )
    two = await call(session_id=run.session_id)
    assert (script.calls, two["status"]) == (1, "succeeded")
    assert two["cached_from"].startswith("run_")
    assert two["cached_from"].endswith(".2.0")
    assert two["result"].startswith("first\n[cached_from: run_")
    assert two["cost_usd"] == 0
    await sql(db, "UPDATE runs SET status = 'succeeded', finished_at = now()")
    assert (await call(x=2, session_id=run.session_id))["result"] == "second", "other arguments"
    assert (await call())["result"] == "third", "another session"
    await sql(db, "UPDATE runs SET status = 'succeeded', finished_at = now()")
    await sql(db, "UPDATE tool_calls SET cached_until = now() WHERE cached_until IS NOT NULL")
    late = await call(session_id=run.session_id)
    assert (late["result"], late["cached_from"]) == ("fourth", None)


async def test_a_new_version_of_a_tool_uses_no_old_result(play, db):
    script = Script("first", "second")
    tool = script.tool("t", "read", cache_s=60)
    runtime = await a_worker(db, [tool])
    run_id = await asked(play, ("t", {}))
    await work(runtime, play, run_id)
    session_id = (await play.read(run_id)).session_id
    await sql(db, "UPDATE runs SET status = 'succeeded', finished_at = now()")
    runtime.catalog.local.remove("t")
    runtime.catalog.local.add(replace(tool, spec=replace(tool.spec, version="2")))
    (row,) = await work(runtime, play, await asked(play, ("t", {}), session_id=session_id))
    assert row["result"] == "second"


async def test_policy_is_asked_before_a_cached_result_is_given(play, db):
    class Deny(Gate):
        async def decide(self, call, tool):
            return Decision(Verdict.DENY, ("not any more",))

    script = Script("secret")
    runtime = await a_worker(db, [script.tool("t", "read", cache_s=60)])
    run_id = await asked(play, ("t", {}))
    await work(runtime, play, run_id)
    session_id = (await play.read(run_id)).session_id
    await sql(db, "UPDATE runs SET status = 'succeeded', finished_at = now()")
    again = await asked(play, ("t", {}), session_id=session_id)
    ctx = await claim_tools_step(runtime, play, again)
    outcome = await ToolRunner(await scope_of(ctx), Deny(await scope_of(ctx))).run(
        PendingCall.from_row(ctx.calls[0])
    )
    assert outcome.error_type == "PERMISSION_DENIED"
    assert "secret" not in outcome.content
