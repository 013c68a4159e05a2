"""Every reason for which a run ends is in one list, and the list is told in words."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harness_api.schemas.runs import RunView
from harness_common.core.stop_reasons import PLAIN_WORDS, StopReason, in_words

ROOT = Path(__file__).parents[2]
ENDS = {"end": 2, "give_up": 1, "within_limits": 2}
"""Functions that end a run, and the position of the reason among their arguments."""


def _reasons(tree: ast.AST) -> list[tuple[int, str]]:
    """List where a reason is written out as text instead of taken from the list."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [k.value for k in node.keywords if k.arg in {"stop", "reason"}]
        if isinstance(node.func, ast.Name) and node.func.id in ENDS:
            at = ENDS[node.func.id]
            given += node.args[at : at + 1]
        elif not (isinstance(node.func, ast.Name) and node.func.id == "Guidance"):
            continue
        found += [
            (part.lineno, part.value)
            for one in given
            for part in ast.walk(one)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
    return found


@pytest.mark.parametrize(
    "source", ['end(s, Status.FAILED, "odd")', 'give_up(s, "odd")', 'Guidance(stop="odd")']
)
def test_a_reason_written_out_is_seen(source: str) -> None:
    assert [text for _, text in _reasons(ast.parse(source))] == ["odd"]


def test_every_stop_reason_that_is_written_is_in_the_list() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{line} {text}"
        for package in ("harness_common/core", "harness_worker", "harness_common/commands")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in _reasons(ast.parse(path.read_text()))
        if text not in set(StopReason)
    ]
    assert odd == []


def test_every_reason_is_told_in_words_and_in_the_docs() -> None:
    assert set(PLAIN_WORDS) == set(StopReason)
    page = (ROOT / "docs" / "loops-and-limits.md").read_text()
    missing = [reason for reason in StopReason if f"`{reason}`" not in page]
    assert missing == []
    assert in_words("dead_loop").startswith("the model went on")
    assert in_words("of_a_newer_server") == "of a newer server"


def test_the_api_lists_the_reasons_in_its_schema() -> None:
    schema = RunView.model_json_schema()["properties"]["stop_reason"]
    listed = [part["enum"] for part in schema["anyOf"] if "enum" in part]
    assert listed == [[str(reason) for reason in StopReason]]
