"""The JSON at the end, the reasons why it is red, and the logs that are kept then."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.chaos.auditor import Audit, Query
from tests.chaos.recovery import Samples
from tests.chaos.workload import Journal

INFORMATIVE = frozenset({"failed"})
"""What the auditor lists and what is not wrong by itself: a run that five processes died under."""
_SHOWN = 10


@dataclass(slots=True)
class Outcome:
    """Everything one go of chaos gave."""

    seed: int
    mode: str
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    window_s: float = 0.0
    drain_s: float = 0.0
    total_s: float = 0.0
    logs: str | None = None
    p99_limit_s: float | None = None


def percentiles(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return count, p50, p99 and max in seconds."""
    ordered = sorted(values)

    def at(share: float) -> float | None:
        if not ordered:
            return None
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"n": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


def _recovery(samples: Samples) -> dict[str, Any]:
    shown: dict[str, Any] = percentiles(samples.seconds)
    return shown | {"unmeasured": samples.unmeasured, "never": samples.never}


def reasons(
    found: Audit, journal: Journal, outcome: Outcome, killed_s: Sequence[float]
) -> list[str]:
    """Say why this go is red; empty when it is green."""
    red = [f"{kind}: {len(runs)}" for kind, runs in found.wrong.items() if kind not in INFORMATIVE]
    if journal.twins:
        red.append(f"idempotency keys with two runs: {len(journal.twins)}")
    if journal.refused:
        red.append(f"requests refused: {len(journal.refused)}")
    if journal.unanswered:
        red.append(f"requests never answered: {len(journal.unanswered)}")
    limit_s = outcome.p99_limit_s
    p99_s = percentiles(killed_s)["p99"]
    if limit_s is not None and (p99_s is None or p99_s > limit_s):
        red.append(f"recovery after a kill: p99 {p99_s} s, {limit_s} s are allowed")
    if outcome.errors:
        red.append(f"faults that raised: {len(outcome.errors)}")
    return red


def build(
    outcome: Outcome, found: Audit, journal: Journal, recovery: dict[Any, Samples]
) -> dict[str, Any]:
    """Build the report."""
    busy_s = max(0.1, outcome.window_s + outcome.drain_s)
    red = reasons(found, journal, outcome, recovery["killed"].seconds)
    return {
        "green": not red,
        "reasons": red,
        "seed": outcome.seed,
        "mode": outcome.mode,
        "runs": found.runs,
        "acknowledged": len(journal.runs),
        "steps": found.steps,
        "faults_total": sum(outcome.faults.values()),
        "fault_kinds": len(outcome.faults),
        "faults": dict(sorted(outcome.faults.items())),
        "faults_missed": dict(outcome.missed),
        "faults_skipped": outcome.skipped,
        "lost": found.count("lost") + found.count("lost_steps") + found.count("lost_effects"),
        "duplicated_runs": found.count("unasked_runs") + len(journal.twins),
        "duplicated_steps": found.count("duplicated_steps"),
        "duplicated_effects": found.count("duplicated_effects"),
        "double_terminals": found.count("double_terminals"),
        "event_gaps": found.count("event_gaps"),
        "stuck": found.count("stuck"),
        "parked_pct": round(100 * len(found.parked) / max(1, found.runs), 2),
        "recovery_s": {why: _recovery(samples) for why, samples in recovery.items()},
        "throughput": {
            "runs_per_s": round(found.runs / busy_s, 2),
            "steps_per_s": round(found.steps / busy_s, 2),
        },
        "outcomes": dict(found.outcomes.most_common()),
        "answers": dict(journal.answers.most_common()),
        "wrong": {kind: runs[:_SHOWN] for kind, runs in sorted(found.wrong.items())},
        "refused": journal.refused[:_SHOWN],
        "fault_errors": outcome.errors[:_SHOWN],
        "seconds": {
            "window": round(outcome.window_s, 1),
            "drain": round(outcome.drain_s, 1),
            "total": round(outcome.total_s, 1),
        },
        "machine": {"cores": os.cpu_count(), "load": [round(x, 2) for x in os.getloadavg()]},
        "logs": outcome.logs,
    }


def events_of(query: Query, names: Sequence[str], lines: int = 12) -> dict[str, list[str]]:
    """Return the last events of some runs, for people."""
    shown = {}
    for name in names:
        if not name.startswith("run_"):
            continue
        rows = query(
            "SELECT seq, type, step, at, left(payload::text, 160) AS payload FROM events "
            "WHERE run_id = %s ORDER BY seq DESC LIMIT %s",
            UUID(hex=name.removeprefix("run_")),
            lines,
        )
        shown[name] = [
            f"{r['seq']:>4} {r['at']:%H:%M:%S.%f} {r['type']} {r['step'] or ''} {r['payload']}"
            for r in reversed(rows)
        ]
    return shown


def keep_logs(folder: Path, seed: int, extra: dict[str, Any]) -> Path:
    """Copy logs, journal and effects to a folder that stays."""
    kept = Path(f"/var/tmp/harness-chaos-{seed}")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for path in [*folder.glob("*.log"), *folder.glob("logs/*.log"), folder / "journal.jsonl"]:
        if path.exists():
            shutil.copy(path, kept / path.name)
    effects = folder / "files" / "outbox" / "effects.txt"
    if effects.exists():
        shutil.copy(effects, kept / effects.name)
    (kept / "findings.json").write_text(json.dumps(extra, indent=1, default=str))
    return kept
