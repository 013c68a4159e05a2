"""Every (from, to) pair of a tool call, written out."""

from __future__ import annotations

import pytest

from harness_common.core.errors import IllegalTransition
from harness_common.core.tool_call import ENDED, CallStatus, move

ORDER = "proposed validating awaiting_approval running succeeded failed cancelled rejected unknown"
# Columns in the order of ORDER.
EXPECTED = {
    "proposed": ". L . . . . L L .",
    "validating": ". . L L . . L L .",
    "awaiting_approval": ". . . L . . L L .",
    "running": ". . . . L L L . L",
    "unknown": ". . . L L L . . .",
    "succeeded": ". . . . . . . . .",
    "failed": ". . . . . . . . .",
    "cancelled": ". . . . . . . . .",
    "rejected": ". . . . . . . . .",
}
PAIRS = [
    (CallStatus(a), CallStatus(b), mark == "L")
    for a, row in EXPECTED.items()
    for b, mark in zip(ORDER.split(), row.split(), strict=True)
]


def test_the_table_is_complete():
    assert {a for a, _, _ in PAIRS} == {b for _, b, _ in PAIRS} == set(CallStatus)


@pytest.mark.parametrize(("now", "to", "legal"), PAIRS, ids=[f"{a}-{b}" for a, b, _ in PAIRS])
def test_every_move(now, to, legal):
    if legal:
        assert move(now, to) is to
    else:
        with pytest.raises(IllegalTransition):
            move(now, to)


def test_ended_states_are_the_four_that_lead_nowhere():
    """Unknown is not an end: a person resolves it."""
    assert {str(s) for s in ENDED} == {"succeeded", "failed", "cancelled", "rejected"}
