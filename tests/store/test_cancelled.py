"""A cancel that comes at the very end of a call to Redis or Postgres is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness_common.cancelled import cancel_kept
from harness_common.coord.redis import connect
from harness_common.embedded import EmbeddedValkey
from harness_common.settings import RedisSettings
from harness_common.store.db import Database
from harness_common.store.postgres import pg

pytestmark = pytest.mark.anyio


async def lost_cancels(call: Callable[[], Awaitable[object]]) -> list[int]:
    """Cancel the call after 0, 1, 2 … turns of the loop, and return where it went on regardless."""
    lost: list[int] = []
    turns = 0
    while True:
        task = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            return lost
        await asyncio.wait([task])
        if not task.cancelled():
            lost.append(turns)
        turns += 1


async def test_redis_loses_no_cancel(valkey: EmbeddedValkey) -> None:
    redis = connect(valkey.url, RedisSettings())
    try:
        assert await redis.ping()
        assert await lost_cancels(redis.ping) == []
        assert await redis.echo("after all that") == b"after all that"
    finally:
        await redis.aclose()


async def test_postgres_loses_no_cancel(db: Database) -> None:
    async def ask() -> None:
        async with db.connection() as conn:
            await pg(conn).execute("SELECT 1")

    await ask()
    assert await lost_cancels(ask) == []


async def test_a_cancel_is_not_taken_for_an_error_of_postgres(db: Database) -> None:
    async def ask() -> None:
        try:
            async with db.connection() as conn, asyncio.TaskGroup():
                await pg(conn).execute("SELECT pg_sleep(10)")
        except Exception as error:
            raise AssertionError(f"{error!r} hides the cancel") from error

    for _ in range(5):
        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()


async def test_what_is_raised_by_a_cancel_is_a_cancel() -> None:
    async def work() -> None:
        with cancel_kept():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise RuntimeError("the statement was cancelled") from None

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_cancel_from_before_stops_no_cleaning_up() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with cancel_kept():
                await asyncio.sleep(0)
            cleaned.append(True)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned
