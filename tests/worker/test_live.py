"""What runs show while they work: joined, in order, in batches, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from harness_common.coord import live as live_module
from harness_common.coord.channel import nudge_channel
from harness_common.coord.live import LiveStream
from harness_common.coord.redis import connect
from harness_common.settings import RedisSettings
from tests.worker.runtime import NOBODY


class Watch:
    """Hears all live channels of a Valkey."""

    def __init__(self, redis: Any) -> None:
        self._pubsub = redis.pubsub()
        self.heard: dict[UUID, list[Any]] = defaultdict(list)

    async def start(self) -> None:
        await self._pubsub.psubscribe("harness:live:*")
        await self._pubsub.get_message(timeout=5)

    async def take(self, events: int) -> None:
        for _ in range(events):
            message = await self._pubsub.get_message(timeout=5)
            assert message is not None
            run_id = UUID(hex=message["channel"].decode().rpartition(":")[2])
            self.heard[run_id].append(orjson.loads(message["data"]))

    async def nothing_more(self) -> None:
        assert await self._pubsub.get_message(timeout=0.2) is None


@pytest.fixture
async def watch(redis):
    made = Watch(redis)
    await made.start()
    yield made
    await made._pubsub.aclose()


def delta(step: int, text: str) -> Any:
    return {"type": "answer.delta", "step": step, "text": text}


async def test_deltas_of_many_runs_at_once_are_one_event_each(redis, watch):
    stream = LiveStream(redis, "harness")
    runs = [uuid4() for _ in range(50)]
    for n in range(20):
        for run in runs:
            stream.delta(run, 1, f"{n} ")
    assert stream.pending == 50
    await stream.flush()
    await watch.take(50)
    await watch.nothing_more()
    assert watch.heard == {run: [delta(1, "".join(f"{n} " for n in range(20)))] for run in runs}
    assert stream.dropped == 0


async def test_the_order_within_a_run_is_kept(redis, watch):
    stream = LiveStream(redis, "harness")
    run, other = uuid4(), uuid4()
    stream.delta(run, 1, "a")
    stream.delta(other, 7, "x")
    stream.delta(run, 1, "b")
    stream.emit(run, {"type": "tool.progress", "n": 1})
    stream.delta(other, 7, "y")
    stream.delta(run, 1, "c")
    stream.delta(run, 2, "d")
    stream.delta(run, 2, "é\u2028")
    await stream.flush()
    await watch.take(5)
    await watch.nothing_more()
    progress = {"type": "tool.progress", "n": 1}
    assert watch.heard[run] == [delta(1, "ab"), progress, delta(1, "c"), delta(2, "dé\u2028")]
    assert watch.heard[other] == [delta(7, "xy")]


async def test_a_delta_after_a_batch_begins_anew(redis, watch):
    stream = LiveStream(redis, "harness", interval_s=0.001)
    run = uuid4()
    task = asyncio.create_task(stream.run())
    for text in "ab":
        stream.delta(run, 1, text)
        await watch.take(1)
    task.cancel()
    assert watch.heard[run] == [delta(1, "a"), delta(1, "b")]


async def test_more_than_one_call_and_a_nudge(redis, watch, monkeypatch):
    monkeypatch.setattr(live_module, "_PER_CALL", 3)
    nudges = redis.pubsub()
    await nudges.subscribe(nudge_channel("harness"))
    await nudges.get_message(timeout=5)
    stream = LiveStream(redis, "harness")
    runs = [uuid4() for _ in range(7)]
    for run in runs:
        stream.delta(run, 1, "x")
    stream.nudge()
    await stream.flush()
    await watch.take(7)
    assert set(watch.heard) == set(runs)
    heard = await nudges.get_message(timeout=5)
    assert heard is not None
    assert heard["data"] == b"{}"
    await nudges.aclose()


async def test_the_oldest_go_when_nobody_publishes(monkeypatch):
    monkeypatch.setattr(live_module, "_LIMIT", 10)
    monkeypatch.setattr(live_module, "_LIMIT_CHARS", 1_000)
    stream = LiveStream(connect(NOBODY, RedisSettings()), "harness")
    run = uuid4()
    stream.delta(run, 1, "x")
    for n in range(10):
        stream.emit(uuid4(), {"type": "e", "n": n})
    assert (stream.pending, stream.dropped) == (10, 1)
    stream.delta(run, 1, "y")  # not joined to what was dropped
    assert (stream.pending, stream.dropped) == (10, 2)
    for _ in range(100):
        stream.delta(run, 1, "z" * 100)
    assert stream.pending < 10


async def test_without_redis_nothing_waits():
    stream = LiveStream(connect(NOBODY, RedisSettings()), "harness")
    for _ in range(3):
        stream.delta(uuid4(), 1, "x")
    await stream.flush()
    assert (stream.pending, stream.dropped) == (0, 3)


async def test_a_cancellation_that_redis_swallows_still_ends_it(redis):
    stream = LiveStream(redis, "harness", interval_s=0.0)
    real, inside = redis.publish, asyncio.Event()

    async def swallow(*args):
        try:
            inside.set()
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await real(*args)

    redis.publish = swallow
    task = asyncio.create_task(stream.run())
    stream.delta(uuid4(), 1, "x")
    await inside.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done == {task}
