"""The metrics of all processes of a supervisor behind one port.

Each process keeps its values in files of a folder (`prometheus_client`'s multiprocess mode), which
the supervisor reads when it is asked: a process that is busy, stuck or killed is counted as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from harness_common.settings import TelemetrySettings
from harness_common.telemetry.serve_metrics import serve

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_KEPT_DEAD: Final = 100
"""Files of so many dead processes are kept, so that what they counted stays counted."""


class FolderCollector(Collector):
    """Reads the metrics of every process that has files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Add them up, but for the gauges of processes that are gone."""
        self._tidy()
        # A process that was killed while it made a file left it empty, which cannot be read.
        files = [str(f) for f in self._folder.glob("*.db") if f.stat().st_size]
        found: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return found

    def _tidy(self) -> None:
        dead: dict[int, list[Path]] = {}
        for file in self._folder.glob("*.db"):
            pid = int(file.stem.rpartition("_")[2])
            if not _lives(pid):
                dead.setdefault(pid, []).append(file)
        oldest = sorted(dead, key=lambda pid: max(_changed_at(f) for f in dead[pid]))
        forgotten = set(oldest[: max(0, len(oldest) - _KEPT_DEAD)])
        for pid, files in dead.items():
            for file in files:
                if pid in forgotten or file.stem.startswith("gauge_live"):
                    file.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _changed_at(file: Path) -> float:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime
    return 0.0


class SupervisedMetrics:
    """The folder of a supervisor's processes and the port that shows it; nothing without a port."""

    def __init__(self, config: TelemetrySettings) -> None:
        self._config = config
        self._folder: Path | None = None
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> SupervisedMetrics:
        port = self._config.worker_metrics_port
        if port is not None:
            self._folder = Path(tempfile.mkdtemp(prefix="harness-metrics-"))
            self._stop = serve(FolderCollector(self._folder), self._config.metrics_host, port)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a process has to be told to take part."""
        return {} if self._folder is None else {VARIABLE: str(self._folder)}
