"""Rate limits on real processes: nobody calls before Retry-After, no herd, no slot held.

The judge of the first test is `llmock`, a server that nobody here wrote.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness_common.embedded.process import free_port, spawn
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@contextmanager
def server(*argv: str, folder: Path, ready: str) -> Iterator[httpx.Client]:
    """Start a provider on a free port (in place of `PORT`) and wait for its page `ready`."""
    port = free_port()
    with (folder / "provider.log").open("wb") as log:
        process = spawn([a.replace("PORT", str(port)) for a in argv], stdout=log, stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        until(lambda: answers(client, ready), 30)
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


def start_runs(client: httpx.Client, n: int, model: str = "openai/fake") -> None:
    """Start runs that each ask a question of their own, so that a judge can tell them apart."""
    spec = {"model": model}
    assert client.post("/v1/agents", json={"name": "asker", "spec": spec}).status_code == 201
    for i in range(n):
        body = {"agent": "asker", "input": f"question {i}"}
        assert client.post("/v1/runs", json=body).status_code == 202


def statuses(stack: Stack) -> dict[str, int]:
    rows = stack.query("SELECT status, count(*) AS n FROM runs GROUP BY status")
    return {r["status"]: r["n"] for r in rows}


def test_llmock_finds_no_early_call_and_no_storm():
    """60 calls a minute for 100 runs of four processes; Redis is flushed in the middle."""
    llmock = str(Path(sys.executable).parent / "llmock")
    port = free_port()
    with (
        Stack(
            workers=1,
            processes=4,
            HARNESS_OPENAI_BASE_URL=f"http://127.0.0.1:{port}/v1",
            HARNESS_OPENAI_API_KEY="sk-test",
        ) as stack,
        server(
            llmock, "serve", "--port", str(port), "--rpm", "60", "--log-level", "warning",
            folder=stack.folder, ready="/_llmock/verdict",
        ) as _,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as provider,
        stack.client() as client,
    ):
        start_runs(client, 100, "openai/gpt-4o")
        until(lambda: statuses(stack).get("delayed", 0) > 10, 60)
        print(client.get("/v1/throttles").text)
        subprocess.run([sys.executable, "-c", f"import redis; redis.Redis.from_url({stack.valkey.url!r}).flushall()"], check=True)
        until(lambda: statuses(stack) == {"succeeded": 100}, 120, 0.5)
        print(provider.get("/_llmock/verdict", params={"format": "text"}).text)
        verdict = provider.get("/_llmock/verdict").json()
        print(stack.query("select * from throttles"))
        assert verdict["passed"], verdict
