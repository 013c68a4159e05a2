"""The run's protocol, searched through by Spin: every property holds, and each breaks without its
mechanism.
"""

from __future__ import annotations

import os

import pytest

from tests.model.check import ModelBroken, missing_tools, run_case, verdict_of
from tests.model.plan import CASES, Case

_MISSING = missing_tools()


@pytest.fixture(autouse=True)
def _tools() -> None:
    if not _MISSING:
        return
    said = f"{' and '.join(_MISSING)} not installed: apt-get install spin gcc"
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_spin_finds_what_the_plan_says(case: Case) -> None:
    found = {one.formula: one.verdict for one in run_case(case)}

    assert found == dict.fromkeys(case.holds, "holds") | dict.fromkeys(case.breaks, "breaks")


def test_every_property_breaks_without_its_mechanism() -> None:
    held = {(case.model, prop) for case in CASES for prop in case.holds}
    broken = {(case.model, prop) for case in CASES if not case.whole for prop in case.breaks}

    assert held == broken


@pytest.mark.parametrize(
    "said",
    [
        "",
        "pan: reached -DMEMLIM bound\nState-vector 1 byte, depth reached 2, errors: 0\n",
        "error: max search depth too small\nState-vector 1 byte, depth reached 2, errors: 0\n",
        "pan:1: invalid array index (at depth 3)\nState-vector 1 byte, depth reached 2, errors: 1",
    ],
)
def test_a_search_that_was_cut_short_is_no_verdict(said: str) -> None:
    with pytest.raises(ModelBroken, match="no verdict"):
        verdict_of(said, progress=False)
