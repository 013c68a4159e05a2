"""A provider's limit, shared by everybody who calls it: the pause it asked for and the pace after
it. Pure: no I/O, no clock, no randomness.

A throttle belongs to a scope (provider, model, credential). Postgres holds it; the sums that must
be atomic are in `throttle_hit.sql` and `throttle_reserve.sql`, with the factors of this module. A
run that may not call yet holds a `Permit`: its own slot, which it keeps over its delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from harness_common.core.message import Json

START_INTERVAL_S: Final = 0.1
"""Pace after the first refusal of a provider that says nothing about its rate: ten calls a second.
"""
MIN_INTERVAL_S: Final = 0.01
MAX_INTERVAL_S: Final = 10.0
"""The slowest guess; a rate that a provider names may be slower."""
SLACK: Final = 1.1
"""We go a tenth slower than the rate that a provider names: calls that arrive a little unevenly
then still find room.
"""
SLOWER: Final = 2.0
"""What a refusal that came in spite of the pace makes of the interval, where no rate is known."""
SLOWER_KNOWN: Final = 1.25
"""The same where the provider names its rate: others share the credential, or windows are uneven.
"""
FASTER: Final = 0.95
"""What each call that went well makes of the interval."""
LEAST_PAUSE_S: Final = 0.1
"""`Retry-After: 0` is no leave for a hot loop."""
HORIZON_S: Final = 300.0
"""Slots are given out so far beyond the pause. Whoever finds none asks again in that time: a
provider that recovers must not find its callers spread over hours.
"""
NO_SLOT: Final = -1
ENDS_AFTER_S: Final = 10.0
"""A throttle ends when its pause and its last slot are so long past."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What the headers of an answer say about the provider's limit on requests."""

    per_s: float | None
    """Calls a second that the limit gives; None when the headers do not tell."""
    used_up: bool
    """No call is left now: the next one would be refused."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A live throttle, as Postgres last said."""

    scope: str
    until: datetime
    """Nobody calls before this time (INV14)."""
    interval_s: float
    """Between two calls, over all processes."""
    hits: int
    """Refusals that came in spite of the pace known then; each one voids the permits before it."""
    updated_at: datetime


def slowest_s(named_s: float | None) -> float:
    """Return the slowest pace to guess after a refusal: a provider that names the time to come back
    at takes a call by then. What names less than a second is not believed that far.
    """
    return MAX_INTERVAL_S if named_s is None else min(MAX_INTERVAL_S, max(1.0, named_s))


class Leave(Enum):
    """What a permit is worth now."""

    GO = "go"
    WAIT = "wait"
    LATE = "late"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Permit:
    """A slot of one run: it may call at `at`, unless the provider has refused again since."""

    scope: str
    at: datetime
    hits: int
    """Those of the throttle when it was given; `NO_SLOT`: ask again at `at`."""
    spread: bool = False
    """It was late once and got a new time; then it is honoured however late."""

    def to_json(self) -> dict[str, Json]:
        """Write it for the memo of the run."""
        return {
            "scope": self.scope,
            "at": self.at.isoformat(),
            "hits": self.hits,
            "spread": self.spread,
        }

    @staticmethod
    def from_memo(memo: Mapping[str, Json], scope: str) -> Permit | None:
        """Read the permit that a run holds for `scope`; None when there is none to be read."""
        found = memo.get("permit")
        if not isinstance(found, dict) or found.get("scope") != scope:
            return None
        try:
            at = datetime.fromisoformat(found["at"])
            return Permit(scope, at, int(found["hits"]), bool(found.get("spread")))
        except (KeyError, TypeError, ValueError):
            return None

    def judge(self, throttle: Throttle, now: datetime) -> Leave:
        """Compare with the throttle as it is now.

        LATE: the slot passed so long ago that others may be late with it (a scheduler that was
        away): all at once they would be a herd.
        """
        if self.hits != throttle.hits or self.at < throttle.until:
            return Leave.VOID
        if self.at > now:
            return Leave.WAIT
        late_s = (now - self.at).total_seconds()
        if self.spread or late_s <= max(1.0, 2 * throttle.interval_s):
            return Leave.GO
        return Leave.LATE

    def later(self, now: datetime, jitter: float) -> Permit:
        """Give a late permit a new time: late ones spread over as long as they are late, which is
        the pace they had.
        """
        late_s = (now - self.at).total_seconds()
        return replace(self, at=now + timedelta(seconds=late_s * jitter), spread=True)


def ask_again(opens: datetime, jitter: float) -> datetime:
    """Return when to ask again for a slot that there was none of within the horizon."""
    return opens + timedelta(seconds=HORIZON_S * (0.5 + 0.5 * jitter))


def slot(first: datetime, number: int, interval_s: float, jitter: float) -> datetime:
    """Return the time of the slot `number` (0 for the first) of a batch; `jitter` in [0, 1).

    Jitter is only added, and a twentieth of the interval, so that slots keep their order and a
    call never finds the room used that the slack before it made.
    """
    return first + timedelta(seconds=interval_s * (number + 0.05 * jitter))
