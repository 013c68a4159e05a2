"""The agents of the workload: scripted, so that every run has one right outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.chaos.tools import EFFECTS


@dataclass(frozen=True, slots=True)
class ChaosAgent:
    """An agent, how often it is chosen, and how many steps a run of it that succeeds has."""

    name: str
    weight: int
    steps: int
    script: tuple[dict[str, Any], ...]
    tools: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the request that creates it."""
        spec = {
            "model": f"scripted/{self.name}",
            "tools": list(self.tools),
            "max_turns": 50,
            "model_options": {"script": list(self.script)},
        }
        return {"name": self.name, "spec": spec}


def _says(text: str, delay_s: float, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    item: dict[str, Any] = {"text": text, "delay_s": delay_s}
    if calls:
        item["tools"] = [{"name": name, "input": given} for name, given in calls]
    return item


def _goes_on(text: str, delay_s: float) -> dict[str, Any]:
    return {"text": text, "delay_s": delay_s, "continue": True}


def _line(label: str) -> tuple[str, dict[str, Any]]:
    return "append_line", {"file": EFFECTS, "line": f"{{{{result:1}}}} {label}"}


_SUM = ("calculate", {"expression": "1+1"})
_WHO: tuple[str, dict[str, Any]] = ("whoami", {})

AGENTS = (
    ChaosAgent(
        "thinker", 25, 4,
        (_goes_on("a", 0.6), _goes_on("b", 0.8), _goes_on("c", 0.5), _says("done", 0.7)),
    ),
    ChaosAgent(
        "reader", 25, 5,
        (_says("a", 0.5, _SUM, _SUM), _says("b", 0.4, _SUM), _says("done", 1.2)),
        ("calculate",),
    ),
    ChaosAgent(
        "writer", 25, 7,
        (
            _says("who", 0.3, _WHO),
            _says("one", 0.5, _line("w1")),
            _says("two", 0.5, _line("w2"), _line("w3")),
            _says("done", 0.4),
        ),
        ("whoami", "append_line"),
    ),
    ChaosAgent(
        "slow_writer", 20, 5,
        (
            _says("who", 0.2, _WHO),
            _says("slow", 0.3, ("slow_line", {"line": "{{result:1}} s1"})),
            _says("done", 0.3),
        ),
        ("whoami", "slow_line"),
    ),
    ChaosAgent(
        "sleeper", 10, 3,
        (_says("wait", 0.2, ("wait", {"seconds": 2.0})), _says("done", 0.2)),
        ("wait",),
    ),
    ChaosAgent("longer", 5, 2, (_goes_on("long", 4.0), _says("done", 2.0))),
)  # fmt: skip

STEPS = {agent.name: agent.steps for agent in AGENTS}
