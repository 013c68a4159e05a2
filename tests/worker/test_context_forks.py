"""Forks, replays, later runs of a session and processes that start cold see what the run saw."""

from __future__ import annotations

import pytest

from harness_common.commands import ForkRun, fork_run
from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.context_rounds import STALE
from harness_common.core.context_view import is_summary
from harness_common.core.message import ToolResult
from harness_common.core.run import Status
from harness_common.core.taint import UNTRUSTED, marks_in
from harness_common.store.claim import load_history
from harness_common.store.context_reads import read_context
from tests.store.play import sql
from tests.worker.context_bench import CountingServer, look_tool, open_bench
from tests.worker.runtime import make_tool

SMALL = {"window_tokens": 1_600, "rounds_kept": 3, "summary_tokens": 100}


async def test_a_fork_after_a_compaction_asks_what_its_source_asked(db, play):
    server = CountingServer(22)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        asked = list(server.bodies)
        kinds = {c["step"]: c["kind"] for c in await play.checkpoints(run.id)}
        compact = max(step for step, kind in kinds.items() if kind == "compact")
        models = [step for step, kind in kinds.items() if kind == "model"]
        for step in (compact + 1, compact + 3, compact - 1):
            request = ForkRun(step=step - 1, created_by=bench.key)
            fork = await fork_run(db, play.tenant_id, run.id, request)
            server.requests.clear()
            await bench.drive(fork.run_id, steps=step)
            if kinds[step] == "model":
                assert server.bodies[0]["messages"] == asked[models.index(step)]["messages"]
        # A fork from before it is compacted by itself, and sees all until then.
        first = min(step for step, kind in kinds.items() if kind == "compact")
        fork = await fork_run(db, play.tenant_id, run.id, ForkRun(step=first - 2))
        assert "context" not in (await play.read(fork.run_id)).state.memo


async def test_a_dry_run_takes_the_compactions_of_the_record(db, play):
    server = CountingServer(16)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        assert await bench.payloads(run.id, "context.compacted")
        server.requests.clear()
        request = ForkRun(dry_run=True, created_by=bench.key)
        dry = await bench.drive((await fork_run(db, play.tenant_id, run.id, request)).run_id)
        assert dry.state.status is Status.SUCCEEDED, dry.state.error
        assert server.requests == []
        kinds = [c["kind"] for c in await play.checkpoints(run.id)]
        assert [c["kind"] for c in await play.checkpoints(dry.id)] == kinds
        assert await play.messages(dry.id) == await play.messages(run.id)
        assert dry.state.memo["context"] == run.state.memo["context"]


async def test_a_process_that_forgot_the_run_sends_the_same(db, play):
    asked = []
    for forgets in (False, True):
        server = CountingServer(16)
        async with open_bench(db, play, server) as bench:
            await bench.agent(context=SMALL)
            run_id = await bench.start()
            step = 0
            while (await play.read(run_id)).state.status is Status.RUNNING:
                step += 1
                await bench.drive(run_id, steps=step)
                if forgets:
                    bench.runtime.forget(run_id)
            assert await bench.payloads(run_id, "context.compacted")
            asked.append([b["messages"] for b in server.bodies])
    assert asked[0] == asked[1]


async def test_the_next_run_of_a_session_begins_with_the_summary(db, play):
    server = CountingServer(12)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        first = await bench.run()
        server.requests.clear()
        server.answered, server.turns = 0, 14
        second = await bench.run("And the blue ones?", session_id=first.session_id)
        assert second.state.status is Status.SUCCEEDED, second.state.error
        said = [m["content"] for m in server.bodies[0]["messages"]]
        assert "earlier messages are summarised" in said[1]
        assert said[-1] == "And the blue ones?"
        assert len(said) < first.state.messages
        # Its own compaction stands for the earlier run too: nothing of that is loaded any more.
        assert await bench.payloads(second.id, "context.compacted")
        assert await load_history(db, second) == ()
        last = server.bodies[-1]["messages"]
        assert "And the blue ones?" in str(last)
        seen = await read_context(db, play.tenant_id, second.id, second.state.step)
        assert is_summary(seen.shown[0].message)
        # And the session remembers both, shortly.
        (row,) = await sql(db, "SELECT memory_summary AS s FROM sessions WHERE id = :s",
                           s=first.session_id)  # fmt: skip
        assert row["s"].count("→ All done.") == 2
        assert "And the blue ones?" in row["s"]


async def test_a_summary_of_what_came_from_outside_is_untrusted(db, play):
    inner = look_tool()
    spec = make_tool("look", EffectClass.READ, inner.fn).spec
    outside = Tool(type(spec)(**{**_fields(spec), "untrusted_output": True}), inner.fn)
    server = CountingServer(14)
    async with open_bench(db, play, server, outside) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        (summary, *_) = [m for m in await play.messages(run.id) if is_summary(m)]
        assert summary.trust == "untrusted"
        assert UNTRUSTED in marks_in(run.state.memo)
        told = await bench.payloads(run.id, "context.compacted")
        assert {t["trust"] for t in told} == {"untrusted"}


def _fields(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


async def test_a_result_that_was_read_again_is_replaced_by_a_note(db, play):
    server = CountingServer(14)
    server.arguments = lambda n: {"i": n % 2}
    async with open_bench(db, play, server) as bench:
        # It asks in a circle, on purpose.
        circle = {"ping_pong": False, "no_progress": False, "dead_loop": False}
        await bench.agent(context={**SMALL, "rounds_kept": 4}, loop_guards=circle)
        run = await bench.run()
        results = [
            block.content
            for step in [c["step"] for c in await play.checkpoints(run.id) if c["kind"] == "model"]
            for one in (await read_context(db, play.tenant_id, run.id, step)).shown
            for block in one.message.content
            if isinstance(block, ToolResult)
        ]
        assert STALE in results
        stored = [m for m in await play.messages(run.id) if m.role == "tool"]
        assert all(STALE not in b.content for m in stored for b in m.content)


@pytest.mark.parametrize(
    ("strategy", "how"),
    [("summarise", "summarised"), ("extract", "extracted"), ("trim", "trimmed")],
)
async def test_each_strategy(db, play, strategy, how):
    server = CountingServer(14)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context={**SMALL, "strategy": strategy})
        run = await bench.run()
        assert run.state.status is Status.SUCCEEDED
        told = await bench.payloads(run.id, "context.compacted")
        assert {t["how"] for t in told} == {how}
        assert bool(server.summary_bodies) == (strategy == "summarise")
        summary = next(m for m in await play.messages(run.id) if is_summary(m))
        assert "> Count the cars. Never guess." in summary.text()  # word for word, always


async def test_a_summary_that_is_too_long_is_reduced_to_the_fixed_form(db, play):
    server = CountingServer(14, summary="Intent:\n- count\nDone:\n" + "- looked\n" * 900)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        assert run.state.status is Status.SUCCEEDED
        told = await bench.payloads(run.id, "context.compacted")
        assert {(t["how"], t["note"]) for t in told} == {
            ("extracted", "the summary came out too long")
        }
        assert all(t["tokens_after"] < SMALL["window_tokens"] * 0.8 for t in told)
        assert all(t["output_tokens"] > 0 for t in told)  # it was paid for all the same
