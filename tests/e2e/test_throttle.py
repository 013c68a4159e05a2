"""Rate limits on real processes: nobody calls before Retry-After, no herd, no slot held.

The judge of the first test is `llmock`, a server that nobody here wrote.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from harness_common.embedded.process import free_port, spawn
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@contextmanager
def server(port: int, *argv: str, ready: str) -> Iterator[httpx.Client]:
    """Start a provider that listens on `port` and wait for its page `ready`."""
    process = spawn(argv, stdout=subprocess.DEVNULL)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        until(lambda: answers(client, ready), 60)
        yield client
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


def answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


def until(true: Callable[[], Any], limit_s: float, every_s: float = 0.1) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"not true within {limit_s} s: {found!r}"
        time.sleep(every_s)
    return found


def until_statuses(stack: Stack, wanted: dict[str, int], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while (found := statuses(stack)) != wanted:
        assert time.monotonic() < deadline, found
        assert "failed" not in found, stack.query("SELECT error FROM runs WHERE status = 'failed'")
        time.sleep(0.5)


def start_runs(client: httpx.Client, n: int, model: str) -> None:
    """Start runs that each ask a question of their own, so that a judge can tell them apart."""
    spec = {"model": model}
    assert client.post("/v1/agents", json={"name": "asker", "spec": spec}).status_code == 201

    def start(i: int) -> int:
        body = {"agent": "asker", "input": f"question {i}"}
        return client.post("/v1/runs", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(start, range(n))) == {202}


def statuses(stack: Stack) -> dict[str, int]:
    rows = stack.query("SELECT status, count(*) AS n FROM runs GROUP BY status")
    return {r["status"]: r["n"] for r in rows}


@contextmanager
def platform(port: int, processes: int = 4) -> Iterator[tuple[Stack, httpx.Client]]:
    with (
        Stack(
            processes=processes,
            HARNESS_OPENAI_BASE_URL=f"http://127.0.0.1:{port}/v1",
            HARNESS_OPENAI_API_KEY="sk-secret",
        ) as stack,
        stack.client() as client,
    ):
        yield stack, client


@pytest.mark.parametrize("runs", [96, pytest.param(120, marks=pytest.mark.nightly)])
def test_llmock_finds_no_early_call_and_no_storm(runs):
    """60 calls a minute for more runs of four processes; Redis is flushed in the middle."""
    port = free_port()
    llmock = [str(Path(sys.executable).parent / "llmock"), "serve", "--port", str(port)]
    with (
        server(port, *llmock, "--rpm", "60", ready="/_llmock/verdict") as provider,
        platform(port) as (stack, client),
    ):
        began = time.monotonic()
        start_runs(client, runs, "openai/gpt-4o")
        until(lambda: statuses(stack).get("delayed", 0) > 8, 60)
        redis.Redis.from_url(stack.valkey.url).flushall()
        until_statuses(stack, {"succeeded": runs}, 150)
        took_s = time.monotonic() - began
        verdict = provider.get("/_llmock/verdict").json()
        assert verdict["passed"], verdict
        assert verdict["warnings"] == 0, verdict
        assert took_s < 120


@pytest.mark.parametrize("runs", [150, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_delayed_runs_hold_no_slot(runs):
    """A provider that refuses all: it is asked a few times, then the workers are idle and others
    run.
    """
    port = free_port()
    fake = [sys.executable, "-m", "tests.fakes.openai_server", "--port", str(port)]
    with (
        server(
            port, *fake, "--burst", "0", "--pause", "600", "--notice", "3", ready="/stats"
        ) as provider,
        platform(port) as (stack, client),
    ):
        start_runs(client, runs, "openai/fake")
        until_statuses(stack, {"delayed": runs}, 150)
        gate = provider.get("/stats").json()["gate"]
        assert gate["early"] == 0, gate
        until(lambda: held(stack) == 0, 10)
        slots = stack.query("SELECT sum(running)::int AS n FROM tenant_slots")[0]["n"]
        assert slots == 0
        (throttle,) = client.get("/v1/throttles").json()["data"]
        assert throttle["waiting"] == runs
        assert "sk-secret" not in str(throttle)
        spec = {"model": "scripted/q", "model_options": {"script": [{"text": "done"}]}}
        client.post("/v1/agents", json={"name": "other", "spec": spec})
        run = client.post("/v1/runs", json={"agent": "other", "input": "x"}).json()["id"]
        answer = client.get(f"/v1/runs/{run}", params={"wait": 20}).json()
        assert answer["status"] == "succeeded"


def held(stack: Stack) -> int:
    return int(stack.query("SELECT sum(held)::int AS n FROM workers")[0]["n"])
