"""Following a run over a real connection: it ends where only a person brings the run on."""

from __future__ import annotations

import asyncio

from harness_api.client import AsyncClient
from harness_common.core.ids import decode
from harness_common.core.step import CallOutcome, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from tests.store.play import say


async def test_a_stream_ends_where_only_a_person_brings_the_run_on(url, tenant, play):
    async with AsyncClient(url, tenant.keys["admin"]) as client:
        await _check(client, play)


async def _check(client, play):
    run = await client.runs.create("a", "hi")
    run_id = decode("run", run.id)
    wait = Wait(0, "input", None, {"question": "Which?", "choices": ["a", "b"]})
    asks = CallOutcome(0, "call_0", "ask_user", CallStatus.RUNNING, "", wait=wait)
    await play.step(run_id, say(tools=["ask_user"]))
    await play.step(run_id, ToolsWaiting((asks,)))
    async with asyncio.timeout(10):
        seen = [e async for e in client.runs.stream(run.id)]
        assert seen[-1].type == "run.waiting"
        assert [e async for e in client.runs.stream(run.id, after=seen[-1].seq)] == []
        (question,) = (await client.runs.get(run.id)).questions
        assert (question.call, question.choices) == ("2.0", ("a", "b"))
        going = asyncio.create_task(_types(client, run.id, seen[-1].seq))
        await client.runs.answer(run.id, "b", question.call)
        await client.runs.cancel(run.id)
        assert (await going)[-1] == "run.cancelled"


async def _types(client, run_id, after):
    return [e.type async for e in client.runs.stream(run_id, after, through_waits=True)]
