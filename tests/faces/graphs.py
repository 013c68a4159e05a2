"""Graphs that an operator has registered."""

from __future__ import annotations

import asyncio
import operator
import os
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from harness_worker.frameworks.langgraph_tools import call_tool, call_tool_sync, harness_tools
from harness_worker.sdk import tool


class State(TypedDict, total=False):
    items: list[str]
    item: str
    done: Annotated[list[str], operator.add]


def effects() -> Path:
    return Path(os.environ["FACES_EFFECTS"])


def append(line: str) -> str:
    """Do an effect that counts: it is outside every database."""
    with effects().open("a") as file:
        file.write(line + "\n")
    return line


@tool(effect="write")
async def note(line: str) -> str:
    """Write a line down."""
    return append(line)


@tool(effect="write")
async def slow_note(line: str) -> str:
    """Write a line down; the second and third take their time."""
    if line != "1":
        await asyncio.sleep(float(os.environ.get("FACES_SLOW_S", "0")))
    return append(line)


@tool(effect="read")
async def look(what: str) -> str:
    """Look something up."""
    return f"seen {what}"


@tool(effect="write", permission_tags=["risky"], risk="high")
async def risky(line: str) -> str:
    """Do something that a person has to allow."""
    return append(line)


# --- a chain with a loop ---


def chain() -> StateGraph:
    class Count(TypedDict):
        n: int

    graph = StateGraph(Count)
    graph.add_node("add", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "add")
    graph.add_conditional_edges("add", lambda s: "add" if s["n"] < 3 else END)
    return graph


# --- three effects side by side ---


def fan_out(state: State) -> list[Send]:
    return [Send("work", {"item": item}) for item in state["items"]]


async def work(state: State) -> State:
    return {"done": [await call_tool("slow_note", line=state["item"])]}


async def bare_work(state: State) -> State:
    if state["item"] != "1":
        await asyncio.sleep(float(os.environ.get("FACES_SLOW_S", "0")))
    return {"done": [append(state["item"])]}


def parallel(node: Any = work) -> StateGraph:
    graph = StateGraph(State)
    graph.add_node("work", node)
    graph.add_conditional_edges(START, fan_out, ["work"])
    graph.add_edge("work", END)
    return graph


# --- three tool calls of one answer, the framework's own way ---


def ask(state: MessagesState) -> MessagesState:
    del state
    calls = [
        {"name": "slow_note", "args": {"line": str(n)}, "id": f"c{n}", "type": "tool_call"}
        for n in (1, 2, 3)
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def say(state: MessagesState) -> MessagesState:
    return {"messages": [AIMessage(f"{len(state['messages']) - 2} done")]}


def with_tool_node(tools: Any = None) -> StateGraph:
    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(tools or harness_tools(slow_note)))
    graph.add_node("say", say)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "tools")
    graph.add_edge("tools", "say")
    return graph


# --- questions ---


class Asked(MessagesState):
    names: Annotated[list[str], operator.add]


def question(state: Asked) -> Asked:
    first = interrupt({"question": "Who?", "choices": ["ann", "bob"]})
    call_tool_sync("note", line=f"hello {first}")
    second = interrupt("And then?")
    return {"messages": [AIMessage(f"{first} and {second}")], "names": [first, second]}


def questions() -> Any:
    graph = StateGraph(Asked)
    graph.add_node("question", question)
    graph.add_edge(START, "question")
    return graph.compile()


async def needs_leave(state: MessagesState) -> Command:
    said = await call_tool("risky", line="dangerous")
    return Command(update={"messages": [AIMessage(said)]})


def leave() -> StateGraph:
    graph = StateGraph(MessagesState)
    graph.add_node("act", needs_leave)
    graph.add_edge(START, "act")
    return graph


# --- a model of the framework beside a question ---


def thinks() -> StateGraph:
    """Two nodes side by side ask a model; one of them asks a person then."""
    model = GenericFakeChatModel(messages=iter(answer_of(n) for n in count()))

    async def think(state: Asked) -> Asked:
        await model.ainvoke("hm")
        return {"messages": [], "names": ["thought"]}

    async def wonder(state: Asked) -> Asked:
        await model.ainvoke("hm?")
        return {"messages": [], "names": [interrupt("Who?")]}

    graph = StateGraph(Asked)
    for name, node in (("think", think), ("wonder", wonder)):
        graph.add_node(name, node)
        graph.add_edge(START, name)
    return graph


def answer_of(number: int) -> AIMessage:
    used = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    about = {"model_name": "fake"}
    return AIMessage(f"{number}", usage_metadata=used, response_metadata=about)
