"""Events as JSON and as a stream: without gap or repeat, live when something happens, ended with
the run.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any
from uuid import UUID

import pytest

from harness_api import sse
from harness_api.live import Reader
from harness_api.metrics import Metrics
from harness_common.core.ids import decode, encode
from tests.store.play import ran, say

STREAM = {"Accept": "text/event-stream"}


def parse(text: str) -> list[dict]:
    """Read frames as a browser does; comments are left out."""
    out = []
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if line[:1] not in {"", ":"}
        )
        if fields:
            out.append(fields | {"data": json.loads(fields["data"])})
    return out


@pytest.fixture
async def run(api) -> Any:
    return (await api.post("/v1/runs", json={"agent": "a", "input": "hi"})).json()


async def watched(services, run, readers: int = 1):
    """Wait until so many readers watch a run and Redis has confirmed it."""
    run_id, topics = decode("run", run["id"]), services.hub._topics
    async with asyncio.timeout(5):
        while len(getattr(topics.get(run_id), "readers", ())) < readers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await topics[run_id].confirmed.wait()


async def play_to_end(play, run) -> None:
    run_id = decode("run", run["id"])
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, ran("seen"))
    await play.step(run_id, say("done"))


async def test_pages_of_events(api, play, run):
    await play_to_end(play, run)
    path = f"/v1/runs/{run['id']}/events"
    whole = (await api.get(path)).json()
    seqs = [e["seq"] for e in whole["data"]]
    assert seqs == list(range(1, len(seqs) + 1))
    assert whole["next_cursor"] is None
    assert whole["data"][-1]["type"] == "run.completed"
    first = (await api.get(path, params={"limit": 4})).json()
    rest = (await api.get(path, params={"after": first["next_cursor"]})).json()
    assert first["data"] + rest["data"] == whole["data"]


@pytest.mark.parametrize("suffix", ["events", "stream"])
async def test_a_finished_run_streams_its_events_and_ends(api, play, run, suffix):
    await play_to_end(play, run)
    answer = await api.get(f"/v1/runs/{run['id']}/{suffix}", headers=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = parse(answer.text)
    events = (await api.get(f"/v1/runs/{run['id']}/events")).json()["data"]
    assert [f["data"] for f in frames[:-1]] == events
    assert [int(f["id"]) for f in frames[:-1]] == [e["seq"] for e in events]
    assert [f["event"] for f in frames[:-1]] == [e["type"] for e in events]
    assert frames[-1]["event"] == "end"
    assert frames[-1]["data"] == {"status": "succeeded", "last_seq": events[-1]["seq"]}


async def test_resuming_at_every_place_gives_the_rest(api, play, run):
    await play_to_end(play, run)
    path = f"/v1/runs/{run['id']}/stream"
    last = (await api.get(f"/v1/runs/{run['id']}/events")).json()["data"][-1]["seq"]
    for seen in range(last + 1):
        frames = parse((await api.get(path, headers={"Last-Event-ID": str(seen)})).text)
        assert [int(f["id"]) for f in frames[:-1]] == list(range(seen + 1, last + 1))
        assert frames[-1]["event"] == "end"
        assert parse((await api.get(path, params={"after": seen})).text) == frames
    answer = await api.get(path, headers={"Last-Event-ID": "x"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


async def test_a_stream_follows_a_run_without_gap_or_repeat(api, play, run, services):
    """The reader joins while the run goes on; every commit is noticed, by notice or by poll."""
    reading = asyncio.create_task(api.get(f"/v1/runs/{run['id']}/stream"))
    run_id = decode("run", run["id"])
    await watched(services, run)
    for result in (say(tools=["look"]), ran("seen"), say(tools=["look"]), ran("seen"), say()):
        await play.step(run_id, result)
        await services.channel.live(run_id, {"type": "committed", "seq": 0, "status": "running"})
    async with asyncio.timeout(10):
        frames = parse((await reading).text)
    seqs = [int(f["id"]) for f in frames if "id" in f]
    assert seqs == list(range(1, len(seqs) + 1))
    assert [f["event"] for f in frames[-2:]] == ["run.completed", "end"]
    assert not services.hub._topics


async def collect(services, tenant, run, after: int, until: str, role="admin") -> list[dict]:
    """Read frames up to the first of a name, then leave as a client does that loses its
    connection.
    """
    frames: list[dict] = []
    run_id, key = decode("run", run["id"]), tenant.rows[role]["public_id"]
    async with aclosing(sse.follow(services, tenant.id, run_id, after, key)) as stream:
        async for chunk in stream:
            frames += parse(chunk.decode())
            if frames and frames[-1]["event"] == until:
                return frames
    return frames


async def test_a_cut_stream_goes_on_where_it_was(play, run, services, tenant):
    run_id = decode("run", run["id"])
    first = await collect(services, tenant, run, 0, "run.started")
    await play.step(run_id, say(tools=["look"]))
    second = await collect(services, tenant, run, int(first[-1]["id"]), "model.answered")
    await play.step(run_id, ran("seen"))
    await play.step(run_id, say())
    third = await collect(services, tenant, run, int(second[-1]["id"]), "end")
    seqs = [int(f["id"]) for f in first + second + third if "id" in f]
    assert seqs == list(range(1, len(seqs) + 1))
    assert not services.hub._topics, "a reader was left behind"


async def test_a_stream_ends_with_its_key(api, play, run, services, tenant):
    """A run may go on for days: who lost the key learns nothing more of it."""
    reading = asyncio.create_task(collect(services, tenant, run, 0, "end", role="viewer"))
    await watched(services, run)
    key = encode("api_key", tenant.rows["viewer"]["id"])
    assert (await api.delete(f"/v1/api-keys/{key}")).status_code == 204
    await play.step(decode("run", run["id"]), say(tools=["look"]))
    async with asyncio.timeout(10):
        frames = await reading
    assert "model.answered" not in {f["event"] for f in frames}
    assert not services.hub._topics


async def test_deltas_are_shown_live_and_marked_as_not_durable(play, run, services, tenant):
    run_id = decode("run", run["id"])
    reading = asyncio.create_task(collect(services, tenant, run, 0, "answer.delta"))
    await watched(services, run)
    await services.channel.live(run_id, {"type": "answer.delta", "step": 1, "text": "Hel"})
    async with asyncio.timeout(5):
        frames = await reading
    assert "id" not in frames[-1]
    assert frames[-1]["data"] == {"step": 1, "text": "Hel", "durable": False}


async def test_a_message_that_cannot_be_read_ends_nobody_s_stream(
    play, run, services, tenant, redis
):
    run_id = decode("run", run["id"])
    reading = asyncio.create_task(collect(services, tenant, run, 0, "answer.delta"))
    await watched(services, run)
    channel = services.hub._prefix + run_id.hex
    for odd in (b"{", b"[1]", b"\xff"):
        await redis.publish(channel, odd)
    await services.channel.live(run_id, {"type": "answer.delta", "step": 1, "text": "Hel"})
    async with asyncio.timeout(10):
        events = await reading
    assert events[-1]["data"]["text"] == "Hel"


async def test_late_deltas_of_a_committed_step_are_not_shown(play, run, services, tenant):
    run_id = decode("run", run["id"])
    await play.step(run_id, say(tools=["look"]))
    reading = asyncio.create_task(collect(services, tenant, run, 0, "answer.delta"))
    await watched(services, run)
    await asyncio.sleep(0.1)
    for step in (1, 2):
        await services.channel.live(run_id, {"type": "answer.delta", "step": step, "text": "x"})
    async with asyncio.timeout(5):
        assert (await reading)[-1]["data"]["step"] == 2


def test_a_slow_reader_loses_deltas_and_no_notice():
    reader = Reader(UUID(int=1), Metrics())
    for n in range(1000):
        reader.push({"type": "answer.delta", "step": 1, "text": str(n)})
    reader.push({"type": "committed", "seq": 5})
    assert reader.take_notice()
    kept = [d["text"] for d in reader.deltas()]
    assert len(kept) == 256
    assert kept[-1] == "999"


async def test_the_hub_finds_commits_without_redis(api, play, run, services, valkey):
    """Nobody publishes here but the poll: the stream still ends."""
    reading = asyncio.create_task(api.get(f"/v1/runs/{run['id']}/stream"))
    await watched(services, run)
    valkey.kill()
    try:
        await play_to_end(play, run)
        async with asyncio.timeout(10):
            frames = parse((await reading).text)
        assert frames[-1]["event"] == "end"
        ready = await api.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        answer = await api.post("/v1/runs", json={"agent": "a", "input": "hi"})
        assert answer.status_code == 202
    finally:
        valkey.start()


async def test_many_readers_share_one_connection(run, services, tenant, redis):
    async def subscribers() -> int:
        clients = await redis.client_list(_type="pubsub")
        return sum(c["name"] == "harness-api" for c in clients)

    readers = [asyncio.create_task(collect(services, tenant, run, 0, "end")) for _ in range(20)]
    await watched(services, run, 20)
    assert await subscribers() == 1
    services.stopping.set()
    services.hub.wake_all()
    async with asyncio.timeout(5):
        await asyncio.gather(*readers)


async def test_a_stream_of_an_unknown_run_is_a_404_and_no_stream(api):
    answer = await api.get("/v1/runs/run_" + "0" * 32 + "/stream")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
