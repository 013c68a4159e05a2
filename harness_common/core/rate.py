"""Rates as data: so many a second, spread evenly (GCRA, the leaky bucket as a meter).

One number is kept: the time until which what was let through is paid for (`tat`, the theoretical
arrival time of ATM's Generic Cell Rate Algorithm, ITU-T I.371). No clock: the caller has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOLERANCE_S: Final = 0.02
"""How far ahead of its time one may come. It is taken off the pace, so that no second holds more
than the rate says.
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of `per_s` a second, paid until `tat_s` (seconds since the epoch)."""

    per_s: float
    tat_s: float = 0.0

    @property
    def interval_s(self) -> float:
        """The time that one takes."""
        return (1.0 + TOLERANCE_S) / self.per_s

    def allowed(self, now_s: float) -> int:
        """Count what may come now."""
        early_s = TOLERANCE_S - max(0.0, self.tat_s - now_s)
        # A billionth of forgiveness for times that were added up in another order.
        return 0 if early_s < -1e-9 else 1 + int(early_s / self.interval_s + 1e-9)

    def charged(self, now_s: float, count: int) -> Rate:
        """Return the rate after `count` came now."""
        return Rate(self.per_s, max(self.tat_s, now_s) + count * self.interval_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long until one more may come."""
        return max(0.0, self.tat_s - now_s - TOLERANCE_S)
