"""A graph that asks a person and then writes three lines side by side, each once at most."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from harness_worker.frameworks.langgraph_tools import call_tool


class State(TypedDict, total=False):
    """What the nodes share."""

    lines: list[str]
    line: str
    written: Annotated[list[str], operator.add]


def confirm(state: State) -> State:
    """Ask before anything is written: the run waits without a worker."""
    said = interrupt({"question": f"Write {len(state['lines'])} lines?", "choices": ["yes", "no"]})
    return {"lines": state["lines"] if said == "yes" else []}


def fan_out(state: State) -> list[Send] | str:
    """Write each line in a task of its own."""
    return [Send("write", {"line": line}) for line in state["lines"]] or END


async def write(state: State) -> dict[str, Any]:
    """Write one line through the ledger: killed and run again, it is not written twice."""
    return {"written": [await call_tool("append_line", file="out.txt", line=state["line"])]}


graph = StateGraph(State)
graph.add_node("confirm", confirm)
graph.add_node("write", write)
graph.add_edge(START, "confirm")
graph.add_conditional_edges("confirm", fan_out, ["write", END])
graph.add_edge("write", END)
