"""What policy says of the built-in tools as they declare themselves."""

from __future__ import annotations

import pytest

from examples.analyst.agent import script
from harness_common.contracts.tool import EffectClass
from harness_common.core.policy import Verdict, decide
from harness_common.settings import Settings
from harness_common.store.policies import RunFacts
from harness_worker.tools.policy_view import PolicyView
from harness_worker.tools.registry import ToolRegistry


@pytest.fixture(scope="module")
def registry():
    return ToolRegistry.from_settings(Settings())


def play(registry, names, role="admin"):
    """Ask about these tools one after another, as a run does; return what is said of each."""
    marks: set[str] = set()
    said = []
    for name in names:
        view = PolicyView(RunFacts(role=role), "a", frozenset(marks))
        decision = decide(view.about(registry.get(name).spec, {}))
        said.append(str(decision.verdict))
        if decision.verdict is Verdict.ALLOW:
            assert decision.facts is not None
            marks |= decision.facts.adds
    return said


def test_the_flags(registry):
    """A flag that is forgotten here is a hole in taint and in the rule of two."""
    specs = registry.specs()

    def names(flag):
        return {s.name for s in specs if getattr(s, flag)}

    assert names("outbound") == {"http_get"}
    assert names("reads_private") == {
        "sql_query", "sql_schema", "file_read", "file_list", "run_program", "memory_search",
    }  # fmt: skip
    assert names("untrusted_output") == {"http_get", "artifact_read"}
    assert {s.name for s in specs if s.effect is EffectClass.WRITE} == {
        "append_line", "write_report", "run_program", "memory_save", "memory_forget",
    }  # fmt: skip


def test_the_analyst_is_asked_about_nothing(registry):
    asked = [tool["name"] for item in script() for tool in item.get("tools", ())]
    assert {"sql_query", "append_line", "write_report"} <= set(asked)
    assert set(play(registry, asked)) == {"allow"}
    assert set(play(registry, asked, role="operator")) == {"allow"}
    assert "deny" in play(registry, asked, role="viewer")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["http_get", "calculate", "chart"], ["allow", "allow", "allow"]),
        (["http_get", "write_report"], ["allow", "ask"]),
        (["http_get", "http_get"], ["allow", "ask"]),
        (["http_get", "sql_query"], ["allow", "ask"]),
        (["sql_query", "http_get"], ["allow", "ask"]),
        (["file_read", "http_get", "append_line"], ["allow", "ask", "allow"]),
        (["artifact_read", "append_line"], ["allow", "ask"]),
        (["artifact_read", "sql_query", "spawn_run"], ["allow", "allow", "allow"]),
        (["sql_query", "artifact_read", "http_get"], ["allow", "allow", "ask"]),
        (["http_get", "spawn_run", "ask_user", "wait"], ["allow"] * 4),
    ],
)
def test_what_follows_from_the_flags(registry, names, said):
    assert play(registry, names) == said
