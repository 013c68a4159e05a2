"""Several commands that meet at the rows they need."""

from __future__ import annotations

import asyncio


async def all_at_once(play, work, *, waiting=None):
    """Hold the tenant's row until so many of `work` wait for it, so that they really meet."""
    async with play.db.transaction() as conn:
        await conn.execute("SELECT FROM tenant_slots FOR UPDATE")
        tasks = [asyncio.ensure_future(w) for w in work]
        await until_blocked(conn, waiting or len(tasks))
    return await asyncio.gather(*tasks, return_exceptions=True)


async def until_blocked(conn, count):
    statement = (
        "SELECT count(*) AS n FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    while True:
        row = await (await conn.execute(statement)).fetchone()
        if row["n"] >= count:
            return
        await conn.execute("SELECT pg_stat_clear_snapshot()")
