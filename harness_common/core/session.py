"""Session states. They are derived from the session's runs, so that no second writer can disagree
with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from harness_common.core.errors import IllegalTransition
from harness_common.core.run import TERMINAL, Status


class SessionStatus(StrEnum):
    """`closed` is read-only and still auditable."""

    CREATED = "created"
    RUNNING = "running"
    IDLE = "idle"
    REQUIRES_ACTION = "requires_action"
    CLOSED = "closed"


MOVES: Final[dict[SessionStatus, frozenset[SessionStatus]]] = {
    SessionStatus.CREATED: frozenset({SessionStatus.RUNNING, SessionStatus.CLOSED}),
    SessionStatus.RUNNING: frozenset({SessionStatus.IDLE, SessionStatus.REQUIRES_ACTION}),
    SessionStatus.REQUIRES_ACTION: frozenset({SessionStatus.RUNNING, SessionStatus.IDLE}),
    SessionStatus.IDLE: frozenset({SessionStatus.RUNNING, SessionStatus.CLOSED}),
    SessionStatus.CLOSED: frozenset(),
}

NEEDS_A_PERSON: Final = frozenset({Status.WAITING_APPROVAL, Status.WAITING_INPUT})


def session_status(closed: bool, runs: Iterable[Status]) -> SessionStatus:
    """Derive the state of a session from whether it was closed and the states of its runs."""
    if closed:
        return SessionStatus.CLOSED
    states = list(runs)
    if not states:
        return SessionStatus.CREATED
    if any(s in NEEDS_A_PERSON for s in states):
        return SessionStatus.REQUIRES_ACTION
    if any(s not in TERMINAL for s in states):
        return SessionStatus.RUNNING
    return SessionStatus.IDLE


def check_move(now: SessionStatus, to: SessionStatus) -> None:
    """Raise `IllegalTransition` unless a session in state `now` may go to `to`."""
    if to not in MOVES[now]:
        raise IllegalTransition(
            f"a session that is {now} cannot become {to}", status=str(now), wanted=str(to)
        )
