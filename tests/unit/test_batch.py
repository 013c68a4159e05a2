"""Batches without waiting: what comes while one is under way is the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness_common.batch import Batcher

pytestmark = pytest.mark.anyio


class Work:
    """Doubles numbers; each batch waits until it is let go."""

    def __init__(self, *, bad: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Event] = []
        self._more = asyncio.Event()
        self._bad = bad

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        gate = asyncio.Event()
        self.gates.append(gate)
        self._more.set()
        await gate.wait()
        if self._bad in items:
            raise ValueError("bad")
        return [2 * item for item in items]

    async def begun(self, count: int) -> None:
        while len(self.gates) < count:
            self._more.clear()
            await self._more.wait()

    async def end(self, n: int) -> None:
        """Let batch `n` end once it has begun."""
        await self.begun(n + 1)
        self.gates[n].set()


async def test_what_comes_while_a_batch_is_under_way_is_the_next_one():
    work = Work()
    batcher = Batcher(work, patience_s=60)
    first = batcher(1)
    await work.begun(1)
    rest = [batcher(n) for n in (2, 3, 4)]
    await work.end(0)
    await work.end(1)
    assert await asyncio.gather(*[first, *rest]) == [2, 4, 6, 8]
    assert work.batches == [[1], [2, 3, 4]]
    assert (batcher.batches, batcher.items) == (2, 4)


async def test_a_batch_has_so_many_items_at_most():
    work = Work()
    batcher = Batcher(work, largest=2, patience_s=60)
    answers = [batcher(n) for n in range(5)]
    for n in range(3):
        await work.end(n)
    assert await asyncio.gather(*answers) == [0, 2, 4, 6, 8]
    assert work.batches == [[0, 1], [2, 3], [4]]


async def test_one_that_is_held_up_holds_up_nobody_else():
    work = Work()
    batcher = Batcher(work, parallel=2, patience_s=0.01)
    stuck = batcher(1)
    await work.begun(1)
    second = batcher(2)
    await work.end(1)
    assert await second == 4
    assert not stuck.done()
    third, fourth = batcher(3), batcher(4)  # two go at most: these wait for one of them
    await work.begun(3)
    fifth = batcher(5)
    await asyncio.sleep(0.05)
    assert work.batches == [[1], [2], [3, 4]]
    for n in (2, 0, 3):
        await work.end(n)
    assert await asyncio.gather(*[stuck, third, fourth, fifth]) == [2, 6, 8, 10]


async def test_one_that_goes_alone_waits_for_no_other():
    work = Work()
    batcher = Batcher(work, parallel=1, patience_s=0.001)
    first = batcher(1)
    await work.begun(1)
    second = batcher(2)
    await asyncio.sleep(0.02)
    assert work.batches == [[1]]
    await work.end(0)
    await work.end(1)
    assert await asyncio.gather(*[first, second]) == [2, 4]


@pytest.mark.parametrize("alone", [True, False])
async def test_when_a_batch_fails_each_is_tried_alone_if_that_may_help(alone):
    work = Work(bad=2)
    batcher = Batcher(work, patience_s=60, alone_on=(ValueError,) if alone else ())
    answers = [batcher(n) for n in (1, 2, 3)]
    for n in range(4 if alone else 1):
        await work.end(n)
    ends = await asyncio.gather(*answers, return_exceptions=True)
    assert [isinstance(end, ValueError) for end in ends] == [not alone, True, not alone]
    assert work.batches == [[1, 2, 3], [1], [2], [3]][: 4 if alone else 1]


async def test_who_no_longer_waits_does_not_undo_the_work():
    work = Work()
    batcher = Batcher(work)
    gone, stays = batcher(1), batcher(2)
    await work.begun(1)
    gone.cancel()
    await work.end(0)
    assert await stays == 4
    assert work.batches == [[1, 2]]
