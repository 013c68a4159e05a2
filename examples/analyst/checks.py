"""What must hold after the run, judged from outside: over HTTP and by a file that a tool wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.analyst.api import Api
from harness_common.core.message import Json

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker process that was killed while it held the run."""

    worker: str
    pid: int
    step: int
    at: float
    """Unix time, from the same clock as the server's, in s."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was read after the run."""

    run: Row
    steps: list[Row]
    checkpoints: list[Row]
    events: list[Row]
    calls: list[Row]
    artifacts: list[Row]
    files: dict[str, bytes] = field(default_factory=dict)
    """Bytes of the artifacts by id."""

    @classmethod
    def read(cls, api: Api, run_id: str) -> Evidence:
        """Ask the API for everything it says about a run."""
        path = f"/v1/runs/{run_id}"
        artifacts = api.all(f"{path}/artifacts")
        return cls(
            run=api.get(path),
            steps=api.all(f"{path}/steps"),
            checkpoints=api.all(f"{path}/checkpoints"),
            events=api.all(f"{path}/events", "after"),
            calls=api.all(f"{path}/tool-calls"),
            artifacts=artifacts,
            files={a["id"]: api.download(a["links"]["content"]).content for a in artifacts},
        )

    def of_type(self, prefix: str) -> list[Row]:
        """Return the artifacts of a media type, the oldest first."""
        found = [a for a in self.artifacts if a["media_type"].startswith(prefix)]
        return sorted(found, key=lambda a: str(a["id"]))

    def done(self, tool: str) -> list[Row]:
        """Return the calls of a tool that succeeded."""
        return [c for c in self.calls if c["tool"] == tool and c["status"] == "succeeded"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and what was seen."""

    holds: bool
    what: str
    seen: str


def check_all(
    found: Evidence, *, kill: Kill | None, streamed: list[int], lines: list[str]
) -> Iterator[Check]:
    """Judge a run: `streamed` are the numbers of the events as they came, `lines` what the file
    that `append_line` writes to has gained.
    """
    run, n = found.run, found.run["step"]
    yield Check(
        run["status"] == "succeeded",
        "the run succeeded",
        f"{run['status']} ({run['stop_reason']}) after {n} steps",
    )
    yield Check(
        n >= 6 and len(found.done("sql_query")) >= 2,
        "it took 6 steps or more and 2 queries or more",
        f"{n} steps, {len(found.done('sql_query'))} queries",
    )
    yield _taken_over(found, kill)
    yield from _once(found, n, streamed)
    yield from _writes(found, lines)


def _taken_over(found: Evidence, kill: Kill | None) -> Check:
    what = "a worker was killed during a step, and another ended that step"
    if kill is None:
        return Check(False, what, "no worker was killed: the run was over too soon")
    ended_by = next((s["worker"] for s in found.steps if s["step"] == kill.step), None)
    holds = ended_by is not None and ended_by != kill.worker
    return Check(holds, what, f"step {kill.step}: {kill.worker} was killed, {ended_by} ended it")


def _once(found: Evidence, n: int, streamed: list[int]) -> Iterator[Check]:
    committed = [c["step"] for c in found.checkpoints]
    yield Check(
        committed == list(range(1, n + 1)),
        "no step was committed twice",
        f"checkpoints of steps {_shown(committed)}",
    )
    completed = [e["step"] for e in found.events if e["type"] == "step.completed"]
    yield Check(
        sorted(completed) == list(range(1, n + 1)),
        "each step was reported complete once",
        f"step.completed of steps {_shown(completed)}",
    )
    numbers = [e["seq"] for e in found.events]
    gap_free = numbers == list(range(1, len(numbers) + 1))
    yield Check(
        gap_free and bool(numbers) and streamed == numbers,
        "events have no gap, and the stream showed each once",
        f"{_shown(numbers)} stored, {_shown(streamed)} streamed",
    )


def _writes(found: Evidence, lines: list[str]) -> Iterator[Check]:
    asked, wanted = found.done("append_line"), Counter(_line(c) for c in found.calls)
    del wanted[""]
    yield Check(
        len(asked) == 1 and Counter(lines) == wanted,
        "the line was written once (by the file outside the database)",
        f"{len(asked)} call, {len(lines)} line in the file",
    )
    reports, charts = found.of_type("text/markdown"), found.of_type("image/png")
    yield Check(
        len(reports) == 1 == len(found.done("write_report")),
        "the report was written once",
        ", ".join(a["name"] for a in reports) or "none",
    )
    text = b"".join(found.files[a["id"]] for a in reports)
    refers = any(a["id"].encode() in text or a["name"].encode() in text for a in charts)
    is_png = all(found.files[a["id"]].startswith(b"\x89PNG\r\n\x1a\n") for a in charts)
    yield Check(
        bool(charts) and is_png and refers,
        "the chart is a PNG and the report refers to it",
        ", ".join(f"{a['name']} ({a['size_bytes']:,} bytes)" for a in charts) or "none",
    )


def _line(call: Row) -> str:
    arguments: Json = call["arguments"]
    return str(arguments.get("line", "")) if call["tool"] == "append_line" else ""


def _shown(numbers: Iterable[int]) -> str:
    """Write a list of numbers as one range when it is one."""
    found = list(numbers)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}-{found[-1]}"
    return ", ".join(map(str, found)) or "none"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, none when it is not there."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
