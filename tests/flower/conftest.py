"""One Flower process for all tests here, with a Valkey of its own and a Celery worker that has
nothing to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness_common.broker.app import make_app
from harness_common.broker.publish import Bell, Doorbell
from harness_common.embedded import EmbeddedValkey
from harness_common.embedded.process import free_port, spawn
from harness_common.settings import Settings

PASSWORD = "a password for tests"


def until(holds: Callable[[], Any], within_s: float, what: str) -> Any:
    """Wait for something that another process does."""
    deadline = time.monotonic() + within_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)


@dataclass
class FlowerProcess:
    """A Flower that runs."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, *, password: str | None = PASSWORD) -> httpx.Response:
        auth = None if password is None else ("harness", password)
        return httpx.get(f"{self.url}{path}", auth=auth, timeout=10)

    def answers(self) -> bool:
        try:
            return self.get("/flower/healthcheck").is_success
        except httpx.TransportError:
            return False

    def tasks(self, search: str = "") -> list[dict[str, Any]]:
        """Ask for the table of tasks as the page does."""
        form = {
            "draw": "1",
            "start": "0",
            "length": "50",
            "search[value]": search,
            "order[0][column]": "0",
            "order[0][dir]": "desc",
            "columns[0][data]": "received",
        }
        answer = httpx.post(
            f"{self.url}/flower/tasks/datatable", data=form, auth=("harness", PASSWORD), timeout=10
        )
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
        return found


def start_flower(folder: Path, redis_url: str, **env: str) -> FlowerProcess:
    port = free_port()
    log = folder / f"flower-{port}.log"
    with log.open("ab") as out:
        process = spawn(
            [sys.executable, "-m", "harness_common.flower"],
            env={
                **os.environ,
                "HARNESS_REDIS_URL": redis_url,
                "HARNESS_FLOWER__PORT": str(port),
                "HARNESS_FLOWER__PASSWORD": PASSWORD,
                **env,
            },
            stdout=out,
        )
    made = FlowerProcess(process, port, log)
    until(made.answers, 90, "Flower answers")
    return made


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.fixture(scope="session")
def broker(services_dir: Path) -> Iterator[EmbeddedValkey]:
    """Start a Valkey that a test may stop."""
    folder = services_dir / "flower"
    folder.mkdir(mode=0o711)
    with EmbeddedValkey(folder) as server:
        yield server


@pytest.fixture(scope="session")
def flower(services_dir: Path, broker: EmbeddedValkey) -> Iterator[FlowerProcess]:
    made = start_flower(services_dir, broker.url)
    yield made
    stop(made.process)


@pytest.fixture(scope="session")
def idle_worker(services_dir: Path, broker: EmbeddedValkey) -> Iterator[str]:
    """Start a Celery worker of a queue that nobody rings; return its name."""
    name = f"idle@{os.uname().nodename}"
    with (services_dir / "idle.log").open("ab") as out:
        process = spawn(
            [
                *(sys.executable, "-m", "celery", "-A", "harness_common.broker.app", "worker"),
                *("-P", "solo", "-n", name, "-Q", "steps.idle"),
                *("--without-mingle", "--without-gossip"),
            ],
            env={
                **os.environ,
                "HARNESS_REDIS_URL": broker.url,
                "HARNESS_WORKER__QUEUES": '["steps.idle"]',
            },
            stdout=out,
        )
    yield name
    stop(process)


@pytest.fixture
def ring(broker: EmbeddedValkey) -> Iterator[Callable[[Doorbell], None]]:
    """Ring as the API does."""
    bell = Bell(make_app(Settings(redis_url=broker.url)))
    yield bell.ring
    bell.close()
