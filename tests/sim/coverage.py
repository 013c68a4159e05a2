"""What the workload and the faults must have reached, so that silence means something."""

from __future__ import annotations

from collections import Counter
from typing import Final

from harness_common.core.rules import TABLE

NOT_REACHED: Final = (
    {
        ("waiting_tool", kind): "nothing makes a run wait for a tool yet"
        for kind in ("CancelRequested", "PauseRequested", "ResumeRequested", "Steered", "TimerDue")
    }
    | {
        (status, "ApprovalDecided"): "a run whose calls need approval waits for that first"
        for status in ("waiting_tool", "waiting_input", "waiting_children")
    }
    | {("queued", "ResumeRequested"): "a queued run that is asked to pause does so at once"}
)
"""Legal pairs that no script reaches, and why. A pair that is reached must leave this list."""

RARE: Final = {
    *((status, "ApprovalDecided") for status in ("delayed", "paused")),
    ("waiting_approval", "InputGiven"),
}
"""Legal pairs that not every ten thousand seeds reach: a pending approval beside a step that fails,
a pause after another call woke the run, a question beside an approval of the same answer.
"""

FAULTS: Final = (
    "worker killed", "host lost", "worker frozen", "worker terminated",
    "worker cut off from postgres", "worker cut off from redis", "scheduler killed",
    "scheduler frozen", "scheduler cut off from postgres", "scheduler cut off from redis",
    "postgres crashed", "power failed",
    "postgres forgot a claim or heartbeat", "postgres unreachable",
    "redis flushed", "redis restarted", "redis unreachable", "postgres request lost",
    "postgres reply lost", "postgres request late", "redis request lost", "redis reply lost",
    "redis request late", "bell lost", "bell doubled", "bell delayed", "bell not sent",
    "signal lost", "api died before the bell",
)  # fmt: skip
HAPPENED: Final = (
    "cancel", "pause", "resume", "steer", "answer", "resolve", "children started",
    "children cancelled", "turns over", "steps put off", "quarantines", "poisoned", "held runs",
    "questions expired", "decide", "approvals expired", "claim given back", "rung again",
)  # fmt: skip
"""Counted by the simulator: what the scripts and the people must have brought about."""


def missing_pairs(reached: Counter[tuple[str, str]]) -> list[str]:
    """List legal pairs that were not reached, and pairs that were and are said not to be."""
    legal = {(str(status), kind.__name__) for status, kind in TABLE}
    missing = legal - set(NOT_REACHED) - RARE - set(reached)
    wrong = set(NOT_REACHED) & set(reached) | set(NOT_REACHED) - legal
    return sorted(f"{s} {i}" for s, i in missing | wrong)


def missing_faults(struck: Counter[str], happened: Counter[str]) -> list[str]:
    """List kinds of faults that never struck, and what never came about."""
    return [kind for kind in FAULTS if not struck[kind]] + [
        what for what in HAPPENED if not happened[what]
    ]
