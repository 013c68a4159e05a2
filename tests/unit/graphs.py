"""Graphs of tests: written as people write them, and played without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import yaml

from harness_common.contracts.graph import GraphSpec
from harness_common.contracts.graph_compile import compiled
from harness_common.core.graph import Graph
from harness_common.core.graph_log import (
    Plan,
    asked_in,
    follow_up,
    plan,
    replay,
    results_message,
    take,
)
from harness_common.core.graph_progress import Progress
from harness_common.core.message import Message, user
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)
Answer = Callable[[str, dict[str, Any]], Any]
"""Gives the result of a call, by the ledger's name and its arguments; an exception is a failure."""


def spec_of(text: str) -> GraphSpec:
    """Read a definition in YAML."""
    return GraphSpec.model_validate(yaml.safe_load(text))


def graph_of(text: str) -> Graph:
    """Read a definition in YAML as the flat graph that it is."""
    return compiled(spec_of(text))


def outcome(index: int, name: str, content: str, error: str | None = None) -> CallOutcome:
    """Make the end of a call."""
    status = CallStatus.FAILED if error else CallStatus.SUCCEEDED
    return CallOutcome(index, f"call_{index}", name, status, content, error)


class Played:
    """A graph run without a worker: every step is planned from the messages alone."""

    def __init__(self, graph: Graph, input_: str, answer: Answer) -> None:
        self.graph, self.answer = graph, answer
        self.messages: list[Message] = [user(input_)]
        self.steps: list[list[str]] = []
        """The calls of each step: nodes, with the item of a map."""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.made: Plan | None = None

    def progress(self) -> Progress:
        """Return the progress that the messages lead to."""
        return replay(self.graph, self.messages)

    def note(self, made: Plan) -> bool:
        """Take a plan; returns whether it has calls."""
        self.made = made
        self.messages.append(made.message)
        self.events += [(e.type, dict(e.payload)) for e in made.events]
        if made.calls:
            nodes = self.graph.nodes
            self.steps.append(
                [
                    f"{a.node}[{a.item}]" if nodes[a.node].is_map else a.node
                    for a in asked_in([made.message])
                ]
            )
        return made.calls > 0

    def play(self, most: int = 200) -> Played:
        """Play to the end, or for so many steps."""
        if not self.note(plan(self.progress(), NOW)):
            return self
        for _ in range(most):
            progress = self.progress()
            outcomes = self._results()
            take(progress, asked_in(self.messages), outcomes)
            self.messages.append(results_message(outcomes))
            if not self.note(follow_up(progress, NOW)):
                return self
        return self

    def _results(self) -> list[CallOutcome]:
        found = []
        for i, use in enumerate(self.messages[-1].tool_uses()):
            try:
                given = self.answer(use.name, use.input)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
                found.append(outcome(i, use.name, str(error), type(error).__name__))
                continue
            text = given if isinstance(given, str) else json.dumps(given)
            found.append(outcome(i, use.name, text))
        return found
