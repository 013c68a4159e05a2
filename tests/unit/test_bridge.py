"""The bridge by which a synchronous task body awaits."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from harness_worker.bridge import in_greenlet, wait_for

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="outside")


async def test_a_plain_function_awaits_and_returns():
    def body(n: int) -> int:
        return wait_for(asyncio.sleep(0, n)) + wait_for(asyncio.sleep(0, 1))

    assert await in_greenlet(body, 41) == 42


async def test_an_error_is_raised_where_it_was_awaited():
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("here")

    def body() -> str:
        try:
            wait_for(fail())
        except ValueError as error:
            return f"caught {error}"
        return "nothing"

    assert await in_greenlet(body) == "caught here"


async def test_what_the_function_raises_comes_out():
    def body() -> None:
        wait_for(asyncio.sleep(0))
        raise LookupError("out")

    with pytest.raises(LookupError, match="out"):
        await in_greenlet(body)


async def test_a_cancelled_task_is_cancelled_at_its_await():
    seen: list[str] = []

    def body() -> None:
        try:
            wait_for(asyncio.sleep(60))
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(in_greenlet(body))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_many_side_by_side_keep_their_own_context():
    def body(who: str) -> str:
        name.set(who)
        wait_for(asyncio.sleep(0))
        return name.get()

    got = await asyncio.gather(*(in_greenlet(body, str(n)) for n in range(50)))
    assert got == [str(n) for n in range(50)]
    assert name.get() == "outside"


def test_outside_of_it_waiting_is_refused():
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="in_greenlet"):
        wait_for(coroutine)
    coroutine.close()
