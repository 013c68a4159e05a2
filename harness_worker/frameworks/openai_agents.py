"""An OpenAI-Agents agent as a run: one turn (an answer and its tools) a step.

What the model answered in a turn is kept as soon as it is there, so that a turn that is done anew
asks for the same calls; and every function tool goes through the ledger, so that it takes effect
once at most. The conversation itself is kept with the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    MaxTurnsExceeded,
    ModelProvider,
    MultiProvider,
    RunConfig,
    Runner,
)
from agents.exceptions import AgentsException
from agents.models.interface import Model
from pydantic import BaseModel

from harness_common.core.errors import HarnessError, Permanent
from harness_common.core.message import Json
from harness_common.core.step import StepResult
from harness_common.store.foreign import Blob, Place
from harness_worker.frameworks.agents_model import PREFIX, OurModel, Recorded, Turns
from harness_worker.frameworks.agents_tools import as_tool, guarded
from harness_worker.frameworks.calls import CURRENT
from harness_worker.frameworks.loading import load
from harness_worker.frameworks.turn import Gave, Turn, result_of
from harness_worker.tools.call import CancelAsked

SETTING: Final = "HARNESS_FRAMEWORKS__AGENTS"


async def run(turn: Turn) -> StepResult:
    """Run the next turn of the run's agent."""
    family = family_of(load(turn.foreign.name, turn.settings.agents, SETTING))
    first = next(iter(family.values()))
    items, agent = await _state(turn, first, family)
    turn.calls.add_tools([as_tool(tool) for tool in _tools(family.values())])
    token = CURRENT.set(turn.calls)
    scope = turn.calls.scope
    state = turn.run.state
    turns = Turns(
        turn.store,
        turn.thread,
        scope.step,
        scope.held.keep,
        scope.held.find,
        state.limits,
        state.spent,
    )
    try:
        return await _turn(turn, agent, items, turns)
    except BaseException:
        await turn.calls.keep()
        raise
    finally:
        CURRENT.reset(token)
        await turn.calls.close()


async def _turn(turn: Turn, agent: Agent[Any], items: list[Any], turns: Turns) -> StepResult:
    config = RunConfig(model_provider=_Provider(turn, turns), tracing_disabled=True)
    output: str | None = None
    try:
        with turns.current():
            done = await Runner.run(agent, items, max_turns=1, run_config=config)
        if done.interruptions:
            raise Permanent(
                "needs_approval of a tool is not supported: let the policy ask for an approval",
                code="NOT_SUPPORTED",
            )
        items, last = done.to_input_list(), done.last_agent
        output = _text(done.final_output)
    except MaxTurnsExceeded as over:
        data = over.run_data
        assert data is not None
        items, last = items + [item.to_input_item() for item in data.new_items], data.last_agent
    except AgentsException as error:
        if isinstance(error.__cause__, HarnessError | CancelAsked):
            raise error.__cause__ from None
        raise
    if turn.calls.waits():
        return result_of(turn, None)
    head = f"{turn.calls.scope.step:09d}"
    kept = json.dumps({"items": items, "agent": last.name}, default=_plain)
    await turn.store.put(Place(turn.thread, "", head), Blob("json", kept.encode()), {})
    told = {"agent": agent.name, "last_agent": last.name}
    spent = turns.spent
    used = spent.input_tokens, spent.output_tokens, spent.cost_usd
    return result_of(turn, Gave(head, output, told, *used))


async def _state(
    turn: Turn, first: Agent[Any], family: dict[str, Agent[Any]]
) -> tuple[list[Any], Agent[Any]]:
    """Return the conversation up to this turn and the agent that is to go on."""
    head = await turn.head()
    if head is None:
        said = [{"role": m.role, "content": m.text()} for m in turn.conversation if m.text()]
        return said, first
    row = await turn.store.read(Place(turn.thread, "", head))
    if row is None:
        raise Permanent("the saved conversation of the run is gone", code="STATE_MISSING")
    kept = json.loads(row["snapshot"])
    return kept["items"], family.get(kept["agent"], first)


class _Provider(ModelProvider):
    """Finds models by name; what they answer in a turn is kept."""

    def __init__(self, turn: Turn, turns: Turns) -> None:
        self._turn, self._turns, self._theirs = turn, turns, MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        """Return a model: one of ours for `harness/provider/model`, else the framework's."""
        name = model_name or PREFIX + self._turn.spec.model
        if name.startswith(PREFIX):
            turn, own = self._turn, name.removeprefix(PREFIX)
            step = turn.calls.scope.step
            return Recorded(OurModel(turn.models.get(own), own, turn.spec, step, turn.sample))
        return Recorded(self._theirs.get_model(name))


def family_of(found: object) -> dict[str, Agent[Any]]:
    """Return the agent that is registered and all that it can hand over to, by name. Their function
    tools and models are guarded from then on, where Harness runs them.
    """
    if callable(found) and not isinstance(found, Agent):
        found = found()
    if not isinstance(found, Agent):
        raise Permanent(
            f"what is registered is no agent of OpenAI Agents but {type(found).__name__}",
            code="BAD_TARGET",
        )
    family: dict[str, Agent[Any]] = {}
    todo: list[Agent[Any]] = [found]
    while todo:
        agent = todo.pop(0)
        if agent.name in family:
            continue
        family[agent.name] = agent
        guarded(agent)
        if isinstance(agent.model, Model) and not isinstance(agent.model, Recorded):
            agent.model = Recorded(agent.model)
        todo += [target for one in agent.handoffs if (target := _target(one)) is not None]
    return family


def _target(one: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | None:
    found = one if isinstance(one, Agent) else one._agent_ref and one._agent_ref()
    return found if isinstance(found, Agent) else None


def _tools(agents: Any) -> Iterator[FunctionTool]:  # noqa: ANN401 - values of a dict
    seen: set[str] = set()
    for agent in agents:
        for tool in agent.tools:
            if isinstance(tool, FunctionTool) and tool.name not in seen:
                seen.add(tool.name)
                yield tool


def _text(output: Any) -> str:  # noqa: ANN401 - text, or what the agent's output type makes
    return output if isinstance(output, str) else json.dumps(output, default=_plain)


def _plain(value: Any) -> Json:  # noqa: ANN401 - whatever an item holds
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
