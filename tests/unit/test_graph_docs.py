"""What docs/graphs.md shows is what the code takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.graph import ToolNode
from harness_common.contracts.graph_compile import compiled, tool_names
from harness_common.core.graph_check import faults
from harness_common.core.graph_draw import COLOURS, Shown, mermaid
from harness_worker.sdk import Graph

PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_definition_of_the_page_is_whole_and_the_builder_of_the_page_gives_the_same_nodes():
    by_hand = AgentSpec.model_validate(yaml.safe_load(block("yaml")))
    assert by_hand.graph is not None
    assert faults(compiled(by_hand.graph)) == []
    assert tool_names(by_hand.graph) == ("list_prs", "fetch_pr", "report")
    names: dict[str, Any] = {}
    exec(block("python").replace("print(", "str("), names)
    built = names["graph"]
    assert isinstance(built, Graph)
    one, two = compiled(by_hand.graph), compiled(AgentSpec.model_validate(built.to_spec()).graph)  # type: ignore[arg-type]
    assert one.nodes == two.nodes
    assert [(e.source, e.target) for e in one.edges] == [(e.source, e.target) for e in two.edges]


def test_the_page_names_every_kind_and_colour():
    for kind in ("tool", "model", "agent", "map", "branch", "wait", "approval", "subgraph"):
        assert f"| `{kind}` |" in PAGE
    used = re.findall(r":::(\w+)", block("mermaid"))
    assert set(used) <= set(COLOURS)


def test_a_picture_takes_any_text():
    spec = AgentSpec.model_validate(
        {
            "kind": "graph",
            "graph": {
                "nodes": {
                    "a": {
                        "kind": "branch",
                        "cases": [{"when": {"at": "/input", "is": 'x"]|<b>`'}, "to": "b"}],
                    },
                    "b": {
                        "kind": "subgraph",
                        "graph": {"nodes": {"c": {"kind": "wait", "seconds": 1}}},
                    },
                }
            },
        }
    )
    assert spec.graph is not None
    assert not isinstance(spec.graph.nodes["b"], ToolNode)
    text = mermaid(compiled(spec.graph), {"a": Shown("completed", 2), "b/c": Shown("waiting", 1)})
    assert '|"/input = x#quot;]|#lt;b#gt;\'"|' in text
    assert "visit 2" in text
    assert text.count("subgraph") == 2
    assert text.count("end\n") == 1
