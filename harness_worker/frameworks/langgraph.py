"""A LangGraph graph as a run: one superstep a step, our store as its checkpointer.

The first step saves the input alone, so that the tasks of the first superstep have the same names
at every attempt (LangGraph derives them from the checkpoint before). A superstep that is done anew
runs only the tasks that had not finished, and what those had already done through the ledger is not
done again. An interrupt is a question of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from harness_common.core.budget import Spent
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.message import Json
from harness_common.core.step import StepResult
from harness_worker.frameworks.calls import CURRENT
from harness_worker.frameworks.langgraph_tools import OURS
from harness_worker.frameworks.loading import load
from harness_worker.frameworks.saver import HarnessSaver
from harness_worker.frameworks.turn import Gave, Turn, result_of

SETTING: Final = "HARNESS_FRAMEWORKS__GRAPHS"


async def run(turn: Turn) -> StepResult:
    """Run the next superstep of the run's graph."""
    head = await turn.head()
    saver = HarnessSaver(turn.store, of_run=True, head=head)
    graph = graph_of(load(turn.foreign.name, turn.settings.graphs, SETTING)).copy(
        {"checkpointer": saver}
    )
    usage = UsageMetadataCallbackHandler()
    config: RunnableConfig = {
        "configurable": {"thread_id": turn.thread},
        "callbacks": [usage],
        "metadata": {"harness_run": turn.thread},
    }
    token = CURRENT.set(turn.calls)
    try:
        if head is None:
            await graph.ainvoke(_input(turn), config, interrupt_before="*", durability="sync")
            return result_of(turn, Gave(_head(saver), told={"nodes": [], "superstep": 0}))
        return await _superstep(turn, graph, saver, config, usage)
    except BaseException:
        await turn.calls.keep()
        raise
    finally:
        CURRENT.reset(token)
        await turn.calls.close()


async def _superstep(
    turn: Turn,
    graph: Pregel[Any, Any, Any, Any],
    saver: HarnessSaver,
    config: RunnableConfig,
    usage: UsageMetadataCallbackHandler,
) -> StepResult:
    before = await graph.aget_state(config)
    state = before
    if before.next:
        answers = await _answers(turn, before)
        if answers is None:
            return result_of(turn, None)
        go_on: Command[Any] | None = Command(resume=answers) if answers else None
        try:
            await graph.ainvoke(go_on, config, interrupt_after="*", durability="sync")
        finally:
            # A superstep that waits or fails has this alone: its nodes ask anew when it is run
            # again.
            turn.calls.scope.held.paid += _spent(usage)
        state = await graph.aget_state(config)
        asked = await _answers(turn, state)
        if asked is None or turn.calls.waits():
            return result_of(turn, None)
    used = _spent(usage)
    told = {"nodes": list(before.next), "superstep": (state.metadata or {}).get("step")}
    return result_of(
        turn,
        Gave(
            _head(saver),
            None if state.next else output_of(state.values),
            told,
            used.input_tokens,
            used.output_tokens,
        ),
    )


def _spent(usage: UsageMetadataCallbackHandler) -> Spent:
    """Return the tokens of the answers that came; their price nobody knows."""
    used = usage.usage_metadata.values()
    return Spent(sum(u["input_tokens"] for u in used), sum(u["output_tokens"] for u in used))


async def _answers(turn: Turn, state: StateSnapshot) -> dict[str, Json] | None:
    """Return the answers to the graph's open questions; None when one is still to be given."""
    answers: dict[str, Json] = {}
    for one in state.interrupts:
        if one.id.startswith(OURS):
            continue
        said = await turn.calls.ask(one.id, *_question(one))
        if said is not None:
            answers[one.id] = _value(said)
    open_ones = [i for i in state.interrupts if not i.id.startswith(OURS) and i.id not in answers]
    return None if open_ones else answers


def _question(one: Interrupt[Any]) -> tuple[str, list[str]]:
    """Word an interrupt for a person: its `question` and `choices` if it has them."""
    value = one.value
    if isinstance(value, Mapping) and isinstance(value.get("question"), str):
        return value["question"], [str(c) for c in value.get("choices") or ()]
    return (value if isinstance(value, str) else json.dumps(value, default=str)), []


def _value(text: str) -> Json:
    """Return an answer as the graph gets it: JSON where it is JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def graph_of(found: object) -> Pregel[Any, Any, Any, Any]:
    """Return a compiled graph for what is registered: one, a builder, or a function that makes
    either.
    """
    if callable(found) and not isinstance(found, Pregel | StateGraph):
        found = found()
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, Pregel):
        raise Permanent(
            f"what is registered is no LangGraph graph but {type(found).__name__}",
            code="BAD_TARGET",
        )
    return found


def _input(turn: Turn) -> Json:
    if turn.foreign.input == "messages":
        said = [{"role": m.role, "content": m.text()} for m in turn.conversation if m.text()]
        return {"messages": said}
    try:
        given = json.loads(turn.conversation[-1].text())
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise Invalid("the input of this graph must be a JSON object", field="input")
    return given


def output_of(values: Any) -> str:  # noqa: ANN401 - a graph's state
    """Return the run's output: the last message's text, else the state as JSON."""
    messages = values.get("messages") if isinstance(values, Mapping) else None
    if messages:
        content = getattr(messages[-1], "content", messages[-1])
        return content if isinstance(content, str) else json.dumps(content, default=str)
    return json.dumps(values, default=str, ensure_ascii=False)


def _head(saver: HarnessSaver) -> str:
    assert saver.head is not None
    return saver.head
