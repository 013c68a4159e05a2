"""The life of one tool call, from the model's proposal to its one terminal state."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from harness_common.core.errors import IllegalTransition


class CallStatus(StrEnum):
    """Where a tool call stands. `unknown`: started, and nobody knows whether it happened."""

    PROPOSED = "proposed"
    VALIDATING = "validating"
    AWAITING_APPROVAL = "awaiting_approval"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


MOVES: Final[dict[CallStatus, frozenset[CallStatus]]] = {
    CallStatus.PROPOSED: frozenset(
        {CallStatus.VALIDATING, CallStatus.REJECTED, CallStatus.CANCELLED}
    ),
    CallStatus.VALIDATING: frozenset(
        {
            CallStatus.AWAITING_APPROVAL,
            CallStatus.RUNNING,
            CallStatus.REJECTED,
            CallStatus.CANCELLED,
        }
    ),
    CallStatus.AWAITING_APPROVAL: frozenset(
        {CallStatus.RUNNING, CallStatus.REJECTED, CallStatus.CANCELLED}
    ),
    CallStatus.RUNNING: frozenset(
        {CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.CANCELLED, CallStatus.UNKNOWN}
    ),
    # A person resolves an unknown effect: it happened, it did not, or run it again.
    CallStatus.UNKNOWN: frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.RUNNING}),
    CallStatus.SUCCEEDED: frozenset(),
    CallStatus.FAILED: frozenset(),
    CallStatus.CANCELLED: frozenset(),
    CallStatus.REJECTED: frozenset(),
}
"""Legal next states. The SQL of the ledger (`store/sql/call_*.sql`) compares the state it moves
from.
"""

ENDED: Final = frozenset(s for s, nexts in MOVES.items() if not nexts)


def move(now: CallStatus, to: CallStatus) -> CallStatus:
    """Return `to` if the move is legal; raises `IllegalTransition`."""
    if to not in MOVES[now]:
        raise IllegalTransition(f"a tool call cannot go from {now} to {to}")
    return to
