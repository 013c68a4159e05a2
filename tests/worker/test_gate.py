"""The gate through whole tools steps: what is asked, what is recorded, what is read again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness_common.commands import ForkRun, fork_run
from harness_common.contracts.tool import EffectClass, StartChild, Tool, WaitUntil
from harness_common.core.inputs import OwnerLost, Released
from harness_common.core.step import ToolsDone, ToolsWaiting
from harness_common.core.tool_call import CallStatus
from harness_common.store.audit import Actor
from harness_common.store.policies import TENANT, put_policy
from harness_worker.steps import tools
from harness_worker.tools import runner
from harness_worker.tools.approvals import Approved
from tests.store.play import ran, say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool

READ, WRITE, IDEMPOTENT = EffectClass.READ, EffectClass.WRITE, EffectClass.IDEMPOTENT
WHO = Actor("test")


class Made:
    """Tools that count how often they were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def tool(self, name: str, effect: EffectClass = READ, **more) -> Tool:
        async def fn(ctx, i):
            self.calls.append(name)
            return f"{name} {i}"

        made = make_tool(name, effect, fn)
        return replace(made, spec=replace(made.spec, **more))


@pytest.fixture
def made():
    return Made()


async def step_of(play, db, made_tools, *names, runtime=None, **more):
    """Begin a run whose first answer asks for these tools; return its tools step."""
    runtime = runtime or await make_runtime(db, tools=made_tools)
    run_id = await play.start(**more)
    await play.step(run_id, say(tools=list(names)))
    return await claim_tools_step(runtime, play, run_id)


def outcomes_in(result):
    """Return the outcomes of a tools step."""
    assert isinstance(result, ToolsDone | ToolsWaiting)
    return result.outcomes


async def outcomes_of(ctx):
    """Run a tools step and return its outcomes."""
    return outcomes_in(await tools.run(ctx))


async def rules(play, source, agent=TENANT):
    await put_policy(play.db, play.tenant_id, agent, source, WHO)


async def test_a_denied_call_is_not_started_and_says_why(play, db, made):
    await rules(
        play, "rules: [{name: no-pay, match: {tools: [pay]}, then: deny, reason: not here}]"
    )
    ctx = await step_of(play, db, [made.tool("pay", WRITE), made.tool("look")], "pay", "look")
    result = await tools.run(ctx)
    assert isinstance(result, ToolsDone)
    pay, look = result.outcomes
    assert (pay.status, pay.error_type) == (CallStatus.REJECTED, "PERMISSION_DENIED")
    assert "E403: not here" in pay.content
    assert look.status is CallStatus.SUCCEEDED
    assert made.calls == ["look"]
    await play.settle(ctx.run, result)
    first, second = await play.calls(ctx.run.id)
    assert (first["policy"]["rule"], second["policy"]["rule"]) == (
        "tenant.no-pay", "builtin.effect",
    )  # fmt: skip
    assert first["policy"]["facts"]["tool"] == "pay"


async def test_the_agents_rules_go_before_the_tenants(play, db, made):
    await rules(play, "rules: [{name: t, then: deny}]")
    await rules(play, "rules: [{name: mine, match: {tools: [look]}, then: allow}]", agent="a")
    ctx = await step_of(play, db, [made.tool("look"), made.tool("see")], "look", "see")
    assert [o.status.value for o in await outcomes_of(ctx)] == ["succeeded", "rejected"]


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ({"permission_tags": frozenset({"files"})}, "hard.role"),
        ({"timeout_s": 6.0}, "hard.timeout"),
        ({"cost_estimate_usd": 3.0}, "hard.budget"),
    ],
)
async def test_hard_denials_by_what_the_tool_declares(play, db, made, spec, rule):
    await rules(play, "max_timeout_s: 5\nrules: [{name: all, then: allow}]")
    plain = made.tool("look", timeout_s=1.0)
    odd = replace(plain, spec=replace(plain.spec, name="odd", **{"timeout_s": 1.0, **spec}))
    await sql(
        db, "UPDATE tenant_slots SET cost_usd_per_day = 2 WHERE tenant_id = :t", t=play.tenant_id
    )
    ctx = await step_of(play, db, [plain, odd], "look", "odd")
    look, denied = await outcomes_of(ctx)
    assert look.status is CallStatus.SUCCEEDED
    assert (denied.error_type, denied.policy["rule"]) == ("PERMISSION_DENIED", rule)
    assert made.calls == ["look"]


async def test_the_calls_of_a_step_share_what_is_left(play, db, made):
    dear = made.tool("dear", cost_estimate_usd=2.0)
    runtime = await make_runtime(db, tools=[dear])
    ctx = await step_of(play, db, [], *["dear"] * 3, runtime=runtime, max_cost_usd=5.0)
    # The answer has cost 0.25: two calls fit into what is left, three do not.
    outcomes = await outcomes_of(ctx)
    assert [o.status.value for o in outcomes] == ["succeeded", "succeeded", "rejected"]


async def test_the_rules_are_read_once_a_step_and_anew_for_the_next(play, db, made):
    async def change(ctx, i):
        await rules(play, "rules: [{name: no, then: deny}]")
        return "changed"

    runtime = await make_runtime(db, tools=[make_tool("change", WRITE, change), made.tool("look")])
    ctx = await step_of(play, db, [], "change", "look", runtime=runtime)
    result = await tools.run(ctx)
    assert [o.status.value for o in outcomes_in(result)] == ["succeeded", "succeeded"]
    run_id = ctx.run.id
    await play.settle(ctx.run, result)
    await play.step(run_id, say(tools=["look"]))
    (look,) = await outcomes_of(await claim_tools_step(runtime, play, run_id))
    assert look.policy["rule"] == "tenant.no"


async def crash_after_its_result(play, db, runtime, run_id):
    """Do the write of a step, and die before the step's commit."""
    ctx = await claim_tools_step(runtime, play, run_id)
    await tools.run(ctx)
    assert await play.apply(await play.read(run_id), OwnerLost("w", "killed")) is not None


async def test_an_old_result_is_not_readable_when_policy_denies_it_now(play, db, made):
    """F7: the ledger has the result, and the model is not told it."""
    runtime = await make_runtime(db, tools=[made.tool("pay", WRITE)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    await crash_after_its_result(play, db, runtime, run_id)
    await rules(play, "rules: [{name: no, match: {tools: [pay]}, then: deny}]")
    ctx = await claim_tools_step(runtime, play, run_id)
    (outcome,) = await outcomes_of(ctx)
    assert (outcome.status, outcome.error_type) == (CallStatus.REJECTED, "PERMISSION_DENIED")
    assert "pay 0" not in outcome.content
    assert made.calls == ["pay"], "and it is not done again"
    await play.settle(ctx.run, ToolsDone((outcome,)))
    (call,) = await play.calls(run_id)
    assert (call["status"], call["result"]) == ("succeeded", "pay 0"), "a person can read it"
    assert all("pay 0" not in str(m) for m in await play.messages(run_id))


async def test_an_old_result_is_given_back_while_policy_allows_or_would_ask(play, db, made):
    runtime = await make_runtime(db, tools=[made.tool("pay", WRITE, cost_estimate_usd=1.0)])
    run_id = await play.start(max_cost_usd=1.5)
    await play.step(run_id, say(tools=["pay"]))
    await crash_after_its_result(play, db, runtime, run_id)
    await rules(play, "rules: [{name: ask, match: {tools: [pay]}, then: ask}]")
    await sql(
        db, "UPDATE tenant_slots SET cost_usd_per_day = 0 WHERE tenant_id = :t", t=play.tenant_id
    )
    ctx = await claim_tools_step(runtime, play, run_id)
    (outcome,) = await outcomes_of(ctx)
    assert (outcome.status, outcome.content) == (CallStatus.SUCCEEDED, "pay 0")
    assert made.calls == ["pay"]


async def test_an_old_result_of_a_tool_that_is_gone_is_judged_by_what_was_known(play, db, made):
    runtime = await make_runtime(
        db, tools=[made.tool("pay", WRITE, permission_tags=frozenset()), made.tool("look")]
    )
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    await crash_after_its_result(play, db, runtime, run_id)
    runtime.catalog.local.remove("pay")
    ctx = await claim_tools_step(runtime, play, run_id)
    (outcome,) = await outcomes_of(ctx)
    assert outcome.content == "pay 0"
    assert await play.apply(await play.read(run_id), Released("again")) is not None
    await rules(play, "rules: [{name: no, match: {effect: write}, then: deny}]")
    (outcome,) = await outcomes_of(await claim_tools_step(runtime, play, run_id))
    assert outcome.policy["rule"] == "tenant.no"


async def test_a_dry_run_reads_no_result_that_policy_denies_now(play, db, made):
    runtime = await make_runtime(db, tools=[made.tool("look")])
    source = await play.start("q")
    await play.step(source, say(tools=["look"]))
    await play.step(source, ran("a secret"))
    await play.step(source, say())
    for denied in (False, True):
        request = ForkRun(dry_run=True, created_by="ann")
        started = await fork_run(db, play.tenant_id, source, request)
        await play.step(started.run_id, say(tools=["look"]))
        ctx = await claim_tools_step(runtime, play, started.run_id)
        (outcome,) = await outcomes_of(ctx)
        assert ("a secret" in outcome.content) is not denied
        await rules(play, "rules: [{name: no, then: deny}]")
    assert made.calls == []


async def test_the_decision_about_a_write_is_kept_with_its_intent(play, db):
    """What was decided is known even if the process dies in the effect."""

    class Crash(BaseException):
        pass

    async def pay(ctx, i):
        raise Crash

    ctx = await step_of(play, db, [make_tool("pay", WRITE, pay)], "pay")
    with pytest.raises(Crash):
        await tools.run(ctx)
    (call,) = await play.calls(ctx.run.id)
    assert (call["status"], call["policy"]["verdict"]) == ("running", "allow")
    assert call["policy"]["facts_digest"]


async def test_a_write_whose_result_is_untrusted_keeps_that_over_a_crash(play, db, made):
    runtime = await make_runtime(db, tools=[made.tool("post", WRITE, untrusted_output=True)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["post"]))
    await crash_after_its_result(play, db, runtime, run_id)
    ctx = await claim_tools_step(runtime, play, run_id)
    (outcome,) = await outcomes_of(ctx)
    assert (outcome.trust, outcome.recorded) == ("untrusted", True)
    await play.settle(ctx.run, ToolsDone((outcome,)))
    assert (await play.read(run_id)).state.memo["marks"] == ["untrusted"]


async def test_a_call_that_was_denied_touched_nothing(play, db, made):
    await rules(play, "rules: [{name: no, then: deny}]")
    page = made.tool("page", untrusted_output=True, reads_private=True)
    ctx = await step_of(play, db, [page], "page")
    result = await tools.run(ctx)
    await play.settle(ctx.run, result)
    memo = dict((await play.read(ctx.run.id)).state.memo)
    memo.pop("loop", None)  # the traces of rounds
    assert memo == {"denied": {"page": 1}}
    assert outcomes_in(result)[0].trust == "trusted"


async def test_the_rule_of_two_looks_at_the_calls_of_an_answer_together(play, db, made):
    open_page = made.tool("open", untrusted_output=True, outbound=True)
    query = made.tool("query", reads_private=True)
    ctx = await step_of(play, db, [open_page, query], "open", "query")
    first, second = await outcomes_of(ctx)
    assert first.status is CallStatus.SUCCEEDED
    asked = (CallStatus.AWAITING_APPROVAL, "builtin.rule_of_two")
    assert (second.status, second.policy["rule"]) == asked
    assert made.calls == ["open"]


async def test_what_a_child_touched_is_its_parents_also_after_a_wait(play, db):
    """The child's call ends while another waits: the ledger keeps what the child has touched."""

    async def spawn(ctx, i):
        return StartChild("a", "part")

    async def wait(ctx, i):
        if ctx.resumed is None:
            return WaitUntil(datetime.now(UTC) + timedelta(seconds=0.2))
        return "waited"

    runtime = await make_runtime(
        db, tools=[make_tool("spawn", IDEMPOTENT, spawn), make_tool("wait", READ, wait)]
    )
    run_id = await play.start()
    await play.step(run_id, say(tools=["spawn", "wait"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    assert isinstance(await tools.run(ctx), ToolsWaiting)
    (child,) = await sql(db, "SELECT id FROM runs WHERE parent_run_id = :p", p=run_id)
    await sql(
        db,
        "UPDATE runs SET status = 'succeeded', output = 'x', finished_at = now(), "
        'memo = \'{"marks": ["private", "untrusted"]}\' WHERE id = :c',
        c=child["id"],
    )
    result = await tools.run(ctx)
    assert isinstance(result, ToolsWaiting), "the other call still waits"
    await play.settle(ctx.run, result)
    await asyncio.sleep(0.3)
    await sql(db, "UPDATE runs SET status = 'running', not_before = NULL WHERE id = :r", r=run_id)
    ctx = await claim_tools_step(runtime, play, run_id)
    assert ctx.calls[0]["status"] == "succeeded"
    result = await tools.run(ctx)
    assert isinstance(result, ToolsDone)
    await play.settle(ctx.run, result)
    assert (await play.read(run_id)).state.memo["marks"] == ["private", "untrusted"]


async def test_a_child_begins_with_what_its_parent_has(play, db):
    async def spawn(ctx, i):
        return StartChild("a", "part")

    runtime = await make_runtime(db, tools=[make_tool("spawn", IDEMPOTENT, spawn)])
    run_id = await play.start()
    await sql(db, 'UPDATE runs SET memo = \'{"marks": ["untrusted"]}\' WHERE id = :r', r=run_id)
    await play.step(run_id, say(tools=["spawn"]))
    await tools.run(await claim_tools_step(runtime, play, run_id))
    (child,) = await sql(db, "SELECT id, memo FROM runs WHERE parent_run_id = :p", p=run_id)
    assert child["memo"] == {"marks": ["untrusted"]}
    (message,) = await play.messages(child["id"])
    assert message.trust == "untrusted"


@pytest.mark.parametrize(("edited", "done"), [({"i": 1}, True), ({"i": 9}, False)])
async def test_arguments_that_a_person_edited_are_judged_again(
    play, db, made, monkeypatch, edited, done
):
    """A person who may answer a question does not lift a denial by it."""

    class Yes:
        def __init__(self, scope):
            pass

        async def seek(self, call, tool, decision):
            return Approved(None, edited, edited=True, role="admin")

    monkeypatch.setattr(runner, "Approvals", Yes)
    large = "{name: large, match: {arguments: {properties: {i: {minimum: 5}}}}, then: deny}"
    await rules(play, f"rules: [{large}, {{name: rest, then: ask}}]")
    ctx = await step_of(play, db, [made.tool("pay", WRITE)], "pay")
    (outcome,) = await outcomes_of(ctx)
    assert made.calls == (["pay"] if done else [])
    assert (outcome.status is CallStatus.SUCCEEDED) is done
    assert outcome.policy["rule"] == ("tenant.rest" if done else "tenant.large")
