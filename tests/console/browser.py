"""The console in a real Chromium, before real processes and a model server that speaks slowly."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from harness_common.embedded.process import free_port
from tests.e2e.stack import Stack

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WORDS = " ".join(f"word{i}" for i in range(60))
SLOW_S = 6


@contextmanager
def slow_model(delay_s: float = SLOW_S) -> Iterator[int]:
    """Serve Chat Completions whose answers take a while, word by word; give the port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.openai_server", "--port", str(port),
         "--delay", str(delay_s), "--text", WORDS],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"http://127.0.0.1:{port}/stats", timeout=1)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def console_stack() -> Iterator[tuple[Stack, httpx.Client]]:
    """Start a platform with three agents: `demo` calculates, `slow` streams, `broken` fails."""
    with slow_model() as port:
        stack = Stack(
            processes=1,
            HARNESS_OPENAI_BASE_URL=f"http://127.0.0.1:{port}/v1",
            HARNESS_OPENAI_API_KEY="sk-test",
        )
        with stack, stack.client() as client:
            for name, spec in AGENTS.items():
                answer = client.post("/v1/agents", json={"name": name, "spec": spec})
                assert answer.status_code < 300, answer.text
            yield stack, client


_THREE = [
    {
        "stream": [f"I will calculate part {i}. ", "One moment."],
        "tools": [{"name": "calculate", "input": {"expression": f"17 * {i}"}}],
        "delay_s": 0.2,
    }
    for i in range(1, 4)
]
AGENTS: dict[str, dict[str, Any]] = {
    "demo": {
        "model": "scripted/demo",
        "tools": ["calculate"],
        "model_options": {"script": [*_THREE, {"text": "All together: {{last_result}}."}]},
    },
    "slow": {"model": "openai/gpt-4o-mini", "max_turns": 3},
    "broken": {
        "model": "scripted/broken",
        "model_options": {"script": [{"error": "permanent"}]},
    },
}


def start(client: httpx.Client, agent: str, text: str, **more: Any) -> str:
    """Start a run and return its id."""
    answer = client.post("/v1/runs", json={"agent": agent, "input": text, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def ended(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """Wait until a run is over or needs a person."""
    run: dict[str, Any] = {}
    for _ in range(20):
        run = client.get(f"/v1/runs/{run_id}", params={"wait": 10}).json()
        if run["finished_at"] or run["status"].startswith("waiting") or run["status"] == "paused":
            return run
    raise AssertionError(run)
