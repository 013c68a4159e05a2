"""Loop guards in the steps of a real run: what the model is told, what is not run, how it ends."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.core.errors import NotFound
from harness_common.core.hints import is_hint
from harness_common.core.message import Message, Text, ToolResult
from harness_common.core.run import Status
from harness_worker.runtime import Runtime
from tests.store.play import Play, say, sql
from tests.worker.runtime import FakeModels, say_nothing
from tests.worker.tool_steps import a_tool, a_worker, asked, asks, events, work


async def set_spec(play: Play, key: str, value: str) -> None:
    """Change a part of the agent; `value` is JSON."""
    await sql(
        play.db,
        f"UPDATE agents SET spec = jsonb_set(spec, '{{{key}}}', cast(:v AS jsonb))",
        v=value,
    )


class Sorry(FakeModels):
    """A registry whose models give up."""

    async def chat(self, request: ChatRequest, on_delta: Any = None) -> ChatResult:
        del request, on_delta
        message = Message("assistant", (Text("Sorry, it failed."),))
        return ChatResult(message, Usage(), "stop", "fake/x")


def missing(ran: list[int]) -> Any:
    """Make a tool that always fails in the same way."""

    async def look(ctx: Any, **args: Any) -> str:
        del ctx, args
        ran.append(1)
        raise NotFound("no such thing")

    return a_tool("look", "read", look, max_attempts=1)


async def rounds(runtime: Runtime, play: Play, run_id: UUID, n: int, **args: Any) -> None:
    """Let the run take `n` more rounds of the same call, while it goes on."""
    for _ in range(n):
        if (await play.read(run_id)).state.status is not Status.RUNNING:
            return
        await play.step(run_id, asks(("look", args)))
        await work(runtime, play, run_id)


async def test_a_dead_loop_is_told_then_refused_then_ended(play, db):
    ran: list[int] = []
    runtime = await a_worker(db, [missing(ran)])
    run_id = await asked(play, ("look", {"x": "a"}))
    await work(runtime, play, run_id)
    await rounds(runtime, play, run_id, 1, x="a")
    assert not [m for m in await play.messages(run_id) if is_hint(m)]
    await rounds(runtime, play, run_id, 1, x="a")
    assert len(ran) == 2, "the third identical call is not made"
    results, hint = (await play.messages(run_id))[-2:]
    (result,) = [b for b in results.content if isinstance(b, ToolResult)]
    assert result.error_type == "REPEATED_CALL"
    assert is_hint(hint)
    assert "Change the strategy" in hint.text()
    await rounds(runtime, play, run_id, 5, x="a")
    state = (await play.read(run_id)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "dead_loop")
    assert "look" in state.error["message"]
    assert len(ran) == 2
    guard = await events(play, run_id, "guard.")
    assert [e["type"] for e in guard] == [
        *("guard.blocked", "guard.hinted"),
        *("guard.blocked", "guard.hinted"),
        *("guard.blocked", "guard.stopped"),
    ]
    await play.check_whole(run_id)


async def test_each_guard_can_be_turned_off(play, db):
    ran: list[int] = []
    runtime = await a_worker(db, [missing(ran)])
    await set_spec(
        play,
        "loop_guards",
        '{"dead_loop": false, "no_progress": false, "block_repeats": false, "warn_at": null}',
    )
    run_id = await asked(play, ("look", {"x": "a"}))
    await work(runtime, play, run_id)
    await rounds(runtime, play, run_id, 12, x="a")
    assert (await play.read(run_id)).state.status is Status.RUNNING
    assert len(ran) == 13
    assert await events(play, run_id, "guard.") == []


async def test_a_call_with_a_placeholder_is_not_made(play, db):
    ran: list[dict[str, Any]] = []

    async def write(ctx: Any, **args: Any) -> str:
        del ctx
        ran.append(args)
        return "written"

    runtime = await a_worker(db, [a_tool("look", "read", write), a_tool("write", "write", write)])
    run_id = await asked(play, ("look", {"x": "a"}), ("write", {"x": "<result of call 1>"}))
    ledger = await work(runtime, play, run_id)
    assert [c["status"] for c in ledger] == ["succeeded", "rejected"]
    assert ledger[1]["error_type"] == "RESULT_NOT_READY"
    assert "Wait for the result" in ledger[1]["result"]
    assert ran == [{"x": "a"}]
    (event,) = await events(play, run_id, "guard.")
    assert event["payload"] == {"call": "2.1", "tool": "write", "why": "RESULT_NOT_READY"}


async def test_a_job_that_gets_on_is_polled_as_long_as_it_takes(play, db):
    progress = iter(range(100))

    async def look(ctx: Any, **args: Any) -> dict[str, Any]:
        del ctx, args
        return {"status": "running", "percent": next(progress)}

    runtime = await a_worker(db, [a_tool("look", "read", look)])
    run_id = await asked(play, ("look", {"x": "job"}))
    await work(runtime, play, run_id)
    await rounds(runtime, play, run_id, 14, x="job")
    assert (await play.read(run_id)).state.status is Status.RUNNING
    assert await events(play, run_id, "guard.") == []


async def test_a_run_is_warned_of_its_budget_once(play, db):
    async def look(ctx: Any, **args: Any) -> str:
        del ctx
        return f"new: {args}"

    runtime = await a_worker(db, [a_tool("look", "read", look)])
    run_id = await asked(play, ("look", {"x": "0"}), max_turns=5)
    await work(runtime, play, run_id)
    for i in range(1, 4):
        await play.step(run_id, asks(("look", {"x": f"{i}"})))
        await work(runtime, play, run_id)
    hints = [m.text() for m in await play.messages(run_id) if is_hint(m)]
    assert len(hints) == 1
    assert "1 answer left of 5" in hints[0]
    (event,) = await events(play, run_id, "guard.")
    assert event["payload"]["budget"] == "turns"
    await play.step(run_id, say("done in time"))
    assert (await play.read(run_id)).state.status is Status.SUCCEEDED


@pytest.mark.parametrize(("max_turns", "asked_again"), [(5, True), (2, False)])
async def test_a_model_that_gives_up_is_asked_to_go_on_while_it_may(
    play, db, max_turns, asked_again
):
    """At its cap it keeps the answer that it has, rather than none."""
    runtime = await a_worker(db, [missing([])])
    run_id = await asked(play, ("look", {"x": "a"}), max_turns=max_turns)
    await work(runtime, play, run_id)
    models: Any = Sorry(say_nothing)
    runtime.models = models
    await work(runtime, play, run_id)
    state = (await play.read(run_id)).state
    assert state.status is (Status.RUNNING if asked_again else Status.SUCCEEDED)
    assert bool(await events(play, run_id, "guard.")) is asked_again
    if asked_again:
        await work(runtime, play, run_id)
        assert (await play.read(run_id)).state.output == "Sorry, it failed."
