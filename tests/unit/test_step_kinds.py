"""The statements know the same step kinds without calls as the core."""

from __future__ import annotations

import re

import pytest

from harness_common.core.step import WITHOUT_CALLS
from harness_common.store.postgres import sql
from harness_worker.steps import STEPS


@pytest.mark.parametrize(("statement", "places"), [("claim", 1), ("commit", 2)])
def test_statements_name_the_kinds_without_calls(statement: str, places: int) -> None:
    found = re.findall(r"kind'? NOT IN \(([^)]*)\)", sql(statement).decode())
    assert len(found) == places
    for kinds in found:
        assert set(re.findall(r"'(\w+)'", kinds)) == WITHOUT_CALLS


def test_the_kinds_without_calls_are_kinds() -> None:
    assert set(STEPS) >= WITHOUT_CALLS
