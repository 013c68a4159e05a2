"""The demo's own `harness dev`: started as a process, in its own folder and on free ports.

Used by `demo`. Nothing here is needed to run Harness: it does what you would do by hand.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from examples.analyst.prepare import prepare
from harness_api.cli.dev_file import read_dev_file
from harness_common.embedded.process import free_port

WORKERS: Final = 2
_START_S: Final = 180.0
_STOP_S: Final = 25.0
_MARK: Final = ".harness-demo"
_KEPT: Final = ("HARNESS_OPENAI_BASE_URL", "HARNESS_OPENAI_API_KEY", "HARNESS_MODEL__PRICES")


class DemoFailed(Exception):
    """Why the demo cannot go on, in words for whoever ran it."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the demo keeps its things."""

    root: Path

    @property
    def data(self) -> Path:
        """Files that `sql_query` shows as tables."""
        return self.root / "analyst-data"

    @property
    def files(self) -> Path:
        """What `append_line` may write below."""
        return self.root / "analyst-files"

    @property
    def out(self) -> Path:
        """What the demo downloads."""
        return self.root / "out"

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.root / "logs"


def make_folders(root: Path, *, keep: bool) -> Folders:
    """Make the demo's folder, empty unless `keep`; never one that is somebody else's."""
    running = read_dev_file(root)
    if running is not None:
        raise DemoFailed(
            f"A stack still runs in {root} (process {running['pid']}). "
            f"Stop it with `kill {running['pid']}`, then start the demo again."
        )
    mark = root / _MARK
    if root.exists() and any(root.iterdir()):
        if not mark.exists():
            raise DemoFailed(f"{root} is not empty and was not made by the demo: choose another.")
        if not keep:
            shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)  # the account that Postgres runs as must pass through
    mark.touch()
    folders = Folders(root.resolve())
    shutil.rmtree(folders.logs, ignore_errors=True)  # so that what they say is of this start
    for folder in (folders.files, folders.out, folders.logs):
        folder.mkdir(exist_ok=True)
    prepare(folders.data)
    return folders


class Stack:
    """A `harness dev` of our own."""

    def __init__(
        self, folders: Folders, *, flower: bool, env: Mapping[str, str] | None = None
    ) -> None:
        self.folders = folders
        self._more = dict(env or {})
        self.api_url = f"http://127.0.0.1:{free_port()}"
        self._flower_port = free_port() if flower else 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process of `harness dev`, when it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    @property
    def flower_url(self) -> str | None:
        """Where people find Flower, if it was asked for: behind the login of the API."""
        return f"{self.api_url}/flower/" if self._flower_port else None

    def start(self) -> None:
        """Start it; it goes on when this process ends, so call `stop`."""
        with (self.folders.logs / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours; the stack is stopped in order
            )

    def _command(self) -> list[str]:
        harness = Path(sys.executable).with_name("harness")
        if not harness.exists():
            raise DemoFailed(f"{harness} is not there: run `make setup`.")
        port = self._flower_port
        flower = ["--flower-port", str(port)] if port else ["--no-flower"]
        return [str(harness), "dev", "--processes", str(WORKERS), *flower]

    def _environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Drop the user's settings but those of the model, so that no other database is touched."""
        plain = {k: v for k, v in own.items() if not k.startswith("HARNESS_") or k in _KEPT}
        return plain | {
            "HARNESS_DATA_DIR": str(self.folders.root),
            "HARNESS_API__PORT": self.api_url.rpartition(":")[2],
            "HARNESS_TOOL__SQL_SOURCES": str(self.folders.data),
            "HARNESS_TOOL__FILE_ROOT": str(self.folders.files),
            **self._more,
        }

    def wait(self, say: Callable[[str], None]) -> str:
        """Wait until the API answers and the workers are there; return the admin key.

        `say` gets each thing as it comes up.
        """
        until = time.monotonic() + _START_S
        logs, key_file = self.folders.logs, self.folders.root / "admin.key"
        stages: list[tuple[str, Callable[[], bool]]] = [
            ("Postgres accepts connections", lambda: self._logged("Postgres listens")),
            ("Valkey accepts connections", lambda: self._logged("Valkey listens")),
            ("the database has its tables", (logs / "migrate.log").exists),
            ("the first tenant has an admin key", (logs / "bootstrap.log").exists),
            (f"API, scheduler and {WORKERS} workers are starting", self._is_supervising),
            (f"the API answers on {self.api_url}", lambda: self._answers("/readyz")),
            (f"{WORKERS} workers are ready", lambda: self._workers_alive(key_file) >= WORKERS),
        ]
        for name, is_there in stages:
            while not is_there():
                if self.pid is None:
                    raise DemoFailed(f"The stack ended before this was true: {name}.")
                if time.monotonic() > until:
                    raise DemoFailed(f"After {_START_S:.0f} s this is still not true: {name}.")
                time.sleep(0.1)
            say(name)
        return key_file.read_text(encoding="utf-8").strip()

    def _logged(self, words: str) -> bool:
        """Tell whether the supervisor has said this since it was started."""
        log = self.folders.logs / "dev.log"
        return log.exists() and words in log.read_text(encoding="utf-8", errors="replace")

    def _is_supervising(self) -> bool:
        return read_dev_file(self.folders.root) is not None

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(self.api_url + path, timeout=2).is_success
        except httpx.TransportError:
            return False

    def _workers_alive(self, key_file: Path) -> int:
        headers = {"Authorization": f"Bearer {key_file.read_text(encoding='utf-8').strip()}"}
        answer = httpx.get(f"{self.api_url}/v1/workers", headers=headers, timeout=5)
        if not answer.is_success:
            return 0
        # A folder that was kept lists the workers of earlier starts, ended in order or not.
        return sum(_is_alive(worker) for worker in answer.json()["data"])

    def stop(self) -> bool:
        """Stop everything; return whether it ended in order. Ctrl-C meanwhile makes it faster."""
        if self._process is None:
            return True
        self._process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _STOP_S
        while time.monotonic() < until:
            try:
                return self._process.wait(max(0.0, until - time.monotonic())) == 0
            except KeyboardInterrupt:
                self._process.send_signal(signal.SIGTERM)
            except subprocess.TimeoutExpired:
                break
        self._process.kill()  # its children get a signal when it dies
        self._process.wait()
        return False

    def last_words(self, lines: int = 15) -> str:
        """Return the end of the console log."""
        try:
            text = (self.folders.logs / "console.log").read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])


def _is_alive(worker: Mapping[str, object]) -> bool:
    pid = worker["pid"]
    return worker["died_at"] is None and isinstance(pid, int) and psutil.pid_exists(pid)
