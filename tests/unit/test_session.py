"""A session's state follows from its runs; its moves are written out."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.core.errors import IllegalTransition
from harness_common.core.run import TERMINAL, Status
from harness_common.core.session import SessionStatus, check_move, session_status

LEGAL = {
    ("created", "running"),
    ("created", "closed"),
    ("running", "idle"),
    ("running", "requires_action"),
    ("requires_action", "running"),
    ("requires_action", "idle"),
    ("idle", "running"),
    ("idle", "closed"),
}


@pytest.mark.parametrize(("now", "to"), list(product(SessionStatus, repeat=2)))
def test_every_move(now, to):
    if (str(now), str(to)) in LEGAL:
        check_move(now, to)
    else:
        with pytest.raises(IllegalTransition):
            check_move(now, to)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], "created"),
        (["queued"], "running"),
        (["running"], "running"),
        (["delayed"], "running"),
        (["paused"], "running"),
        (["waiting_tool"], "running"),
        (["waiting_children"], "running"),
        (["waiting_approval"], "requires_action"),
        (["waiting_input"], "requires_action"),
        (["running", "waiting_input"], "requires_action"),
        (["succeeded"], "idle"),
        (["failed", "cancelled"], "idle"),
        (["failed", "queued"], "running"),
    ],
)
def test_status_of_runs(runs, expected):
    assert session_status(False, (Status(r) for r in runs)) == expected


@given(st.lists(st.sampled_from(Status), max_size=5))
def test_closed_wins_and_idle_means_that_all_have_ended(runs):
    assert session_status(True, runs) is SessionStatus.CLOSED
    idle = session_status(False, runs) is SessionStatus.IDLE
    assert idle == (bool(runs) and all(r in TERMINAL for r in runs))
