"""What the workload and the faults must have reached, so that silence means something."""

from __future__ import annotations

from collections import Counter
from typing import Final

from harness_common.core.rules import TABLE

NOT_REACHED: Final = {
    ("waiting_input", "CancelRequested"): "nothing makes a run wait for input yet",
    ("waiting_tool", "CancelRequested"): "nothing makes a run wait for a tool yet",
    ("waiting_children", "CancelRequested"): "nothing makes a run wait for children yet",
    ("paused", "CancelRequested"): "nothing pauses a run yet",
}
"""Legal pairs that no script reaches, and why. A pair that is reached must leave this list."""

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


def missing_pairs(reached: Counter[tuple[str, str]]) -> list[str]:
    """List legal pairs that were not reached, and pairs that were and are said not to be."""
    legal = {(str(status), kind.__name__) for status, kind in TABLE}
    missing = legal - set(NOT_REACHED) - set(reached)
    wrong = set(NOT_REACHED) & set(reached) | set(NOT_REACHED) - legal
    return sorted(f"{s} {i}" for s, i in missing | wrong)


def missing_faults(struck: Counter[str]) -> list[str]:
    """List kinds of faults that never struck."""
    return [kind for kind in FAULTS if not struck[kind]]
