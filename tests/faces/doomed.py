"""A process that is killed: a worker with its runs, or bare LangGraph with its own checkpointer."""

from __future__ import annotations

import asyncio
import os
import sys

os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

from langchain_core.tools import StructuredTool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from redis.asyncio import Redis

from harness_common.logins import derive
from harness_common.settings import FrameworkSettings, Settings, WorkerSettings
from harness_common.store.db import Database
from tests.faces import graphs
from tests.faces.worker import working

GRAPHS = FrameworkSettings(graphs={"with_tool_node": "tests.faces.graphs:with_tool_node"})
TOOLS = (graphs.note, graphs.slow_note)


async def worker() -> None:
    """Work until killed."""
    settings = Settings(
        database_url=os.environ["HARNESS_DATABASE_URL"],
        frameworks=GRAPHS,
        worker=WorkerSettings(lease_s=3, renew_s=0.5),
    )
    redis = Redis.from_url(os.environ["HARNESS_REDIS_URL"])
    db = Database(derive(os.environ["HARNESS_DATABASE_URL"], "system"))
    async with db, working(db, redis, settings, TOOLS):
        await asyncio.Event().wait()


def bare_tools() -> list[StructuredTool]:
    """Return the same effects as plain tools."""

    async def slow_note(line: str) -> str:
        """Write a line down; the second and third take their time."""
        if line != "1":
            await asyncio.sleep(float(os.environ.get("FACES_SLOW_S", "0")))
        return graphs.append(line)

    return [StructuredTool.from_function(coroutine=slow_note)]


async def bare(first: bool) -> str:
    """Run the graph with LangGraph's own checkpointer, or go on with it."""
    async with AsyncPostgresSaver.from_conn_string(os.environ["FACES_BARE_URL"]) as saver:
        if first:
            await saver.setup()
        graph = graphs.with_tool_node(bare_tools()).compile(checkpointer=saver)
        given = {"messages": [{"role": "user", "content": "hi"}]} if first else None
        done = await graph.ainvoke(given, {"configurable": {"thread_id": "t"}}, durability="sync")
        return str(done["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(worker() if sys.argv[1] == "worker" else bare(first=True))
