"""Graph runs over the real store: every kind of node, and what a crash, a wait or a person does."""

from __future__ import annotations

import asyncio

import pytest

from harness_common.core.run import Status
from tests.worker.graph_runs import go_on, graph_worker, node_events, step
from tests.worker.tool_steps import a_tool

LIST_AND_SUM = """
state: {total: {reduce: add, start: 0}}
nodes:
  list: {kind: tool, tool: numbers, args: {n: "${/input/n}"}}
  square: {kind: map, over: "${/nodes/list/output}", parallel: 4,
           do: {tool: square, args: {i: "${/item}"}}}
  sum: {kind: tool, tool: add_up, args: {x: "${/nodes/square/output}"},
        set: {total: "${/output}"}}
edges: ["list -> square -> sum"]
output: "${/state/total}"
"""


def number_tools(seen, effect="read"):
    async def numbers(ctx, n):
        return list(range(n))

    async def square(ctx, i):
        seen.append(i)
        return i * i

    async def add_up(ctx, x):
        return sum(x)

    schema = {"type": "object", "properties": {"n": {}, "i": {}, "x": {}}}
    return [
        a_tool("numbers", "read", numbers, input_schema=schema),
        a_tool("square", effect, square, input_schema=schema),
        a_tool("add_up", "read", add_up, input_schema=schema),
    ]


async def test_tools_alone_make_a_run_without_any_model(play, db):
    seen: list[int] = []
    runtime = await graph_worker(db, LIST_AND_SUM, number_tools(seen))
    run_id = await play.start('{"n": 5}')
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    run = await play.read(run_id)
    assert run.state.output == "30"
    assert run.state.turn == 0
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert await node_events(play, run_id) == [
        ("started", "list"),
        ("completed", "list"),
        ("started", "square"),
        ("completed", "square"),
        ("started", "sum"),
        ("completed", "sum"),
    ]
    await play.check_whole(run_id)
