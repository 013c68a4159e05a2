"""A run that outgrows its model's window: it is compacted and goes on, and what was sent can be
shown.
"""

from __future__ import annotations

import json

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.context_view import is_summary
from harness_common.core.history import repaired
from harness_common.core.run import Status
from harness_common.store.context_reads import read_context
from harness_worker.advance import answer
from harness_worker.models.chat_messages import chat_messages, chat_tools
from tests.fakes.openai_server import refusal
from tests.worker.context_bench import CountingServer, is_summary_request, open_bench, size_of

SMALL = {"window_tokens": 4_000, "rounds_kept": 4, "summary_tokens": 200}


async def as_sent(bench, run_id, step):
    """Rebuild a step's request from the store and write it as the provider does."""
    seen = await read_context(bench.db, bench.play.tenant_id, run_id, step)
    request = ChatRequest(
        model="m",
        messages=repaired([one.message for one in seen.shown], "openai", "m"),
        system=seen.system,
        tools=[ToolDef(**tool) for tool in seen.tools],
    )
    return {"messages": chat_messages(request), "tools": chat_tools(request.tools)}


async def test_a_long_run_is_compacted_and_every_prompt_can_be_shown(db, play):
    server = CountingServer(36, window_tokens=7_000)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        assert run.state.status is Status.SUCCEEDED, run.state.error
        compactions = await bench.payloads(run.id, "context.compacted")
        assert len(compactions) >= 1
        assert {c["how"] for c in compactions} == {"summarised"}
        assert len(server.summary_bodies) >= len(compactions)
        assert max(map(size_of, server.bodies)) <= server.window_tokens
        # What the model saw is what is shown, byte for byte.
        steps = [c["step"] for c in await play.checkpoints(run.id) if c["kind"] == "model"]
        assert len(steps) == len(server.bodies) == 36
        for step, body in zip(steps, server.bodies, strict=True):
            shown = await as_sent(bench, run.id, step)
            assert shown == {"messages": body["messages"], "tools": body["tools"]}
        await bench.play.check_whole(run.id)
        summaries = [m for m in await play.messages(run.id) if is_summary(m)]
        assert len(summaries) == len(compactions)


async def test_a_prompt_begins_with_the_one_before_until_a_compaction(db, play):
    server = CountingServer(36)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        compactions = await bench.payloads(run.id, "context.compacted")
    assert len(server.bodies) == 36
    broken = 0
    for before, after in zip(server.bodies, server.bodies[1:], strict=False):
        same_front = before["messages"] == after["messages"][: len(before["messages"])]
        assert before["tools"] == after["tools"]
        assert before["messages"][0] == after["messages"][0]  # the system text
        text = json.dumps(before["messages"])[:-1]
        assert json.dumps(after["messages"]).startswith(text) == same_front
        broken += not same_front
    assert broken == len(compactions) >= 1


async def test_a_prompt_that_the_provider_refuses_is_compacted_and_sent_again(db, play):
    server = CountingServer(24, window_tokens=4_000)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context={"rounds_kept": 4, "summary_tokens": 200})
        run = await bench.run()
        assert run.state.status is Status.SUCCEEDED, run.state.error
        full = await bench.payloads(run.id, "context.full")
        compactions = await bench.payloads(run.id, "context.compacted")
        assert {f["why"] for f in full} == {"provider"}
        assert len(full) == len(compactions) >= 1
        refused = [b for b in server.bodies if size_of(b) > server.window_tokens]
        assert len(refused) == len(full)
        assert not await bench.payloads(run.id, "step.failed")
        await bench.play.check_whole(run.id)


async def test_a_prompt_that_cannot_be_made_shorter_fails_and_says_so(db, play):
    server = CountingServer(3, window_tokens=300)
    async with open_bench(db, play, server) as bench:
        await bench.agent(system="Count. " * 400)
        run = await bench.run()
        assert run.state.status is Status.FAILED
        assert run.state.error["code"] == "CONTEXT_OVERFLOW"
        assert "larger window" in run.state.error["message"]
        assert len(server.bodies) == 1  # asked once, not for ever


async def test_summaries_that_were_paid_before_the_step_was_put_off_are_on_record(db, play):
    class Busy(CountingServer):
        def _next(self, request):
            if is_summary_request(self.requests[-1]["body"]) and len(self.summary_bodies) == 2:
                return refusal(429, "busy", headers={"retry-after": "60"})
            return super()._next(request)

    server = Busy(36)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context={**SMALL, "window_tokens": 2_500, "summary_tokens": 100})
        run_id = await bench.start("Count the cars. " * 600)
        while (run := await play.read(run_id)).state.status is Status.RUNNING:
            await answer(bench.runtime, play.tenant_id, run_id, run.version)
    assert (run.state.status, run.state.next_kind) == (Status.DELAYED, "compact")
    assert run.state.input_tokens > 1_000
    assert run.state.output_tokens > 0


async def test_options_of_the_agents_own_answers_do_not_spoil_its_summaries(db, play):
    class Strict(CountingServer):
        def _next(self, request):
            body = self.requests[-1]["body"]
            if "parallel_tool_calls" in body and not body.get("tools"):
                return refusal(400, "parallel_tool_calls is only allowed with tools")
            return super()._next(request)

    server = Strict(36)
    async with open_bench(db, play, server) as bench:
        await bench.agent(
            model="openai/o3",
            context=SMALL,
            model_options={
                "parallel_tool_calls": False,
                "response_format": {"type": "json_object"},
            },
        )
        run = await bench.run()
        assert run.state.status is Status.SUCCEEDED, run.state.error
        compactions = await bench.payloads(run.id, "context.compacted")
        assert {c["how"] for c in compactions} == {"summarised"}
    asked = server.summary_bodies[0]
    assert "response_format" not in asked
    # A model that thinks before it answers needs room for both.
    assert asked["max_tokens"] == 200 + 100


async def test_a_compaction_asks_for_no_summary_that_the_run_has_no_budget_for(db, play):
    server = CountingServer(36)
    async with open_bench(db, play, server) as bench:
        rules = {**SMALL, "window_tokens": 2_500, "summary_tokens": 100}
        await bench.agent(context=rules, max_tokens_total=1_500)
        run_id = await bench.start("Count the cars. " * 1_200)
        while (run := await play.read(run_id)).state.status is Status.RUNNING:
            await answer(bench.runtime, play.tenant_id, run_id, run.version)
        assert run.state.stop_reason == "token_budget_exceeded"
        (compacted,) = await bench.payloads(run_id, "context.compacted")
    assert compacted["how"] == "extracted"
    assert compacted["note"].startswith("TOKEN_BUDGET_EXCEEDED")
    assert len(server.summary_bodies) <= 2
