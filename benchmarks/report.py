"""Results as values: what was asked for, what was measured, on which machine; the JSON file and the
table.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import psutil

Json = Any
RESULTS: Final = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number. Without a target it is information."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at: Literal["most", "least"] = "least"
    """Whether the target is the most or the least that is right."""
    note: str = ""

    @property
    def ok(self) -> bool | None:
        """Tell whether the target holds; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at == "most" else self.value >= self.target

    @property
    def asked(self) -> str:
        """Write the target."""
        if self.target is None:
            return ""
        return f"{'≤' if self.at == 'most' else '≥'} {number(self.target)}"

    def to_json(self) -> Json:
        """Write the measure for the file."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one benchmark gave. `problems` are failed checks: its numbers then mean nothing."""

    measures: Sequence[Measure]
    details: Mapping[str, Json] = field(default_factory=dict)
    problems: Sequence[str] = ()


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return percentile(values, 50)


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile, interpolated between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def number(value: float) -> str:
    """Write a number with three or four digits that matter."""
    if value == int(value) and abs(value) < 1_000_000:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def to_json(key: str, title: str, outcome: Outcome, facts: Mapping[str, Json]) -> Json:
    """Write one benchmark's section of the file: it says by itself where and when it was made."""
    return {
        "benchmark": key,
        "title": title,
        **facts,
        "measures": [m.to_json() for m in outcome.measures],
        "problems": list(outcome.problems),
        "details": dict(outcome.details),
    }


def write(path: Path, sections: Mapping[str, Json]) -> None:
    """Replace sections of a results file; those of other benchmarks stay, with their own date."""
    kept: dict[str, Json] = {}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    merged = dict(sorted({**kept, **sections}.items()))
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(json.dumps({"benchmarks": merged}, indent=1, ensure_ascii=False) + "\n")
    fresh.replace(path)


def table(sections: Mapping[str, Json]) -> str:
    """Write all measures for people."""
    rows = [("", "measured", "", "asked", "holds", "")]
    for section in sections.values():
        rows.append((f"({section['benchmark']}) {section['title']}", "", "", "", "", ""))
        for stored in section["measures"]:
            values = {k: v for k, v in stored.items() if k != "ok"}
            m = Measure(**values)
            holds = {None: "", True: "yes", False: "NO"}[m.ok]
            rows.append((f"  {m.name}", number(m.value), m.unit, m.asked, holds, m.note))
        rows += [(f"  CHECK FAILED: {p}", "", "", "", "NO", "") for p in section["problems"]]
    judged = [m["ok"] for s in sections.values() for m in s["measures"] if m["ok"] is not None]
    widths = [max(len(row[i]) for row in rows if row[1]) for i in range(5)]
    lines = []
    for row in rows:
        if not row[1]:
            lines.append(row[0])
            continue
        name, value, *rest = (cell.ljust(w) for cell, w in zip(row[:5], widths, strict=True))
        lines.append("  ".join([name, value.strip().rjust(widths[1]), *rest, row[5]]).rstrip())
    return "\n".join([*lines, f"{sum(judged)} of {len(judged)} targets hold"])


def facts(folder: Path) -> dict[str, Json]:
    """Say on what, of what and when was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git(),
        "machine": {
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "fdatasync_p50_ms": round(fdatasync_p50_ms(folder), 3),
            "load_1m_before": round(os.getloadavg()[0], 2),
        },
    }


def fdatasync_p50_ms(folder: Path, count: int = 200) -> float:
    """Measure how long 8 KiB appended and synced take in `folder`, as a commit does it."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(8192 * count))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(count):
            file.write(os.urandom(8192))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begun) * 1000)
    return median(times)


def _git() -> dict[str, Json]:
    def git(*args: str) -> str:
        argv = ["git", "-C", str(RESULTS.parent), *args]
        return subprocess.run(argv, check=False, capture_output=True, text=True).stdout.strip()

    return {"revision": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
