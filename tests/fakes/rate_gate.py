"""A provider's rate limit for the fake server, and the judge of those who call it.

A bucket of `burst` calls that refills by `per_s`. Whoever finds it empty is refused with a
Retry-After, and everybody has to keep away until then: a call that comes earlier is early. A call
that was under way while the refusal was answered is not: it gets `notice_s`. A client that writes
its monotonic clock into `SENT` is judged by when it sent, so that a slow machine makes nobody
early.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

HERD_WINDOW_S = 0.1
SENT = "x-sent-at"
Say = Literal["seconds", "ms", "float", "date", "nothing"]


@dataclass
class RateGate:
    """The bucket and what it saw. Times are monotonic seconds."""

    per_s: float
    burst: float = 1.0
    pause_s: float | None = None
    """Retry-After of a refusal; None: until the bucket holds a call again."""
    say: Say = "ms"
    headers: bool = False
    """Send `x-ratelimit-*` with each answer."""
    notice_s: float = 0.1
    known_at: float | None = None
    """Set by a test that can say exactly which refusals its clients have seen; then it counts."""
    level: float = field(init=False)
    passed: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    """How many seconds too early each early call was."""
    after_first: list[float] = field(default_factory=list)
    """When calls were sent after the first refusal."""
    _at: float = field(default_factory=time.monotonic)
    _said: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2000))
    """When each refusal was answered, and until when it asked to keep away."""

    def __post_init__(self) -> None:
        self.level = self.burst

    def admit(self, sent: float | None = None) -> dict[str, str] | None:
        """Let a call pass (None), or return the headers of its refusal."""
        now = time.monotonic()
        sent = now if sent is None else sent
        if self.refused:
            self.after_first.append(sent)
        known_at = sent - self.notice_s if self.known_at is None else self.known_at
        known = [until for said, until in self._said if said < known_at and sent < until]
        if known:
            self.early.append(max(known) - sent)
        self.level = min(self.burst, self.level + (now - self._at) * self.per_s)
        self._at = now
        if self.level >= 1:
            self.level -= 1
            self.passed.append(now)
            return None
        self.refused.append(now)
        wait_s = self.pause_s if self.pause_s is not None else (1 - self.level) / self.per_s
        self._said.append((now, now + wait_s))
        return {**self._retry_after(wait_s), **self.rate_headers()}

    def rate_headers(self) -> dict[str, str]:
        if not self.headers:
            return {}
        return {
            "x-ratelimit-limit-requests": f"{self.burst:g}",
            "x-ratelimit-remaining-requests": f"{int(self.level)}",
            "x-ratelimit-reset-requests": f"{(self.burst - self.level) / self.per_s:.3f}s",
        }

    def _retry_after(self, wait_s: float) -> dict[str, str]:
        match self.say:
            case "seconds":
                return {"Retry-After": str(int(wait_s + 0.999))}
            case "float":
                return {"Retry-After": f"{wait_s:.4f}"}
            case "ms":
                return {"retry-after-ms": f"{wait_s * 1000 + 1:.0f}"}
            case "date":
                at = time.time() + wait_s + 1
                day = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
                return {"Retry-After": day}
            case "nothing":
                return {}

    def herd(self) -> int:
        """Return the most calls within a tenth of a second, of those after the first pause."""
        if not self.refused:
            return 0
        ends = self.refused[0] + (self.pause_s or self.notice_s)
        calls = [c for c in self.after_first if c > ends]
        return max((sum(c <= d < c + HERD_WINDOW_S for d in calls) for c in calls), default=0)

    def report(self) -> dict[str, object]:
        calls = sorted(self.passed + self.refused)
        span_s = calls[-1] - calls[0] if len(calls) > 1 else 0.0
        return {
            "passed": len(self.passed),
            "refused": len(self.refused),
            "early": len(self.early),
            "most_early_ms": round(max(self.early, default=0.0) * 1000, 1),
            "herd": self.herd(),
            "span_s": round(span_s, 2),
        }
