"""The baseline of a framework: the same loop as a LangGraph graph with its Postgres checkpointer.

`python -m benchmarks.agents.langgraph_loop --base-url URL --tasks r01,d01 --out FILE` as
`plain_loop`. Killed, it goes on with a task's thread from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from openai import OpenAI

from benchmarks.agents.plain_loop import MAX_TURNS, SYSTEM, TOOLS, called
from benchmarks.agents.tasks import BY_ID, Task

Json = Any


class State(TypedDict):
    """What a graph carries on."""

    messages: Annotated[list[Json], operator.add]
    tokens: Annotated[int, operator.add]


class _Function:
    """A stored call in the shape of the client's."""

    def __init__(self, call: Json) -> None:
        self.id = call["id"]
        self.function = self
        self.name = call["function"]["name"]
        self.arguments = call["function"]["arguments"]


def graph(client: OpenAI) -> StateGraph[State]:
    """Build the two nodes of an agent: the model, and its tools."""

    def model(state: State) -> Json:
        reply = client.chat.completions.create(
            model="brain", messages=state["messages"], tools=TOOLS
        )
        message = reply.choices[0].message.model_dump(exclude_none=True)
        return {"messages": [message], "tokens": reply.usage.total_tokens if reply.usage else 0}

    def run_tools(state: State) -> Json:
        calls = state["messages"][-1]["tool_calls"]
        return {"messages": [called(_Function(call)) for call in calls], "tokens": 0}

    def more(state: State) -> str:
        return "tools" if state["messages"][-1].get("tool_calls") else END

    built = StateGraph(State)
    built.add_node("model", model)
    built.add_node("tools", run_tools)
    built.add_edge(START, "model")
    built.add_conditional_edges("model", more)
    built.add_edge("tools", "model")
    return built


def work(app: Any, task: Task) -> Json:  # noqa: ANN401 - a compiled graph
    """Do one task, or go on with it."""
    config = {"configurable": {"thread_id": task.id}, "recursion_limit": 2 * MAX_TURNS}
    begun = app.get_state(config).values
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.prompt},
    ]
    state = app.invoke(None if begun else {"messages": messages, "tokens": 0}, config)
    turns = sum(m["role"] == "assistant" for m in state["messages"])
    said = state["messages"][-1].get("content")
    return {"task": task.id, "answer": said, "turns": turns, "tokens": state["tokens"]}


def main() -> None:
    """Do the tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database-url", required=True)
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key="none")
    with PostgresSaver.from_conn_string(args.database_url) as saver:
        saver.setup()
        one = _worker(graph(client).compile(checkpointer=saver), args.out)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, args.tasks.split(",")))


def _worker(app: Any, out: Path) -> Callable[[str], None]:  # noqa: ANN401 - a compiled graph
    def one(name: str) -> None:
        try:
            done = work(app, BY_ID[name])
        except Exception as error:  # noqa: BLE001 - the task has failed
            done = {"task": name, "answer": None, "error": f"{type(error).__name__}: {error}"[:300]}
        with out.open("a") as file:
            file.write(json.dumps(done) + "\n")

    return one


if __name__ == "__main__":
    main()
