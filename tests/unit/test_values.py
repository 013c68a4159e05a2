"""Copies of frozen values: the same as those of the standard library."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from harness_common.core.run import RunState, Status
from harness_common.core.values import replace


@pytest.mark.parametrize(
    "changes",
    [{}, {"step": 3}, {"status": Status.RUNNING, "memo": {"a": 1}, "claimed": True}],
    ids=["nothing", "one field", "some fields"],
)
def test_a_copy_is_what_the_standard_library_makes(changes):
    state = RunState(turn=7, stop_reason="x")
    copy = replace(state, **changes)
    assert copy == dataclasses.replace(state, **changes)
    assert state == RunState(turn=7, stop_reason="x")


def test_an_unknown_field_is_an_error():
    with pytest.raises(TypeError, match="steps"):
        replace(RunState(), steps=3)


@dataclass(frozen=True, slots=True)
class Checked:
    low: int
    high: int

    def __post_init__(self):
        assert self.low <= self.high


@dataclass(frozen=True)
class Loose:
    low: int
    high: int


@pytest.mark.parametrize("value", [Checked(1, 2), Loose(1, 2)])
def test_a_value_with_checks_or_without_slots_is_refused(value):
    with pytest.raises(TypeError, match="not a slotted dataclass"):
        replace(value, low=3)
