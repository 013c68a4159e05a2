"""What users of job queues report, on real processes: stops, freezes, losses, cancels, effects.

Every test waits for a fact to become true and fails with what it saw instead.
"""

from __future__ import annotations

import base64
import json
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import redis

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LEASE_S = 3


def agent(name: str, script: list[dict[str, Any]], *tools: str) -> dict[str, Any]:
    return {
        "name": name,
        "spec": {
            "model": f"scripted/{name}",
            "tools": list(tools),
            "max_turns": 50,
            "model_options": {"script": script},
        },
    }


def program(argument: str) -> list[dict[str, Any]]:
    call = {"name": "run_program", "input": {"program": "effect", "args": [argument]}}
    return [{"text": "run it", "tools": [call]}, {"text": "done"}]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    shared = tmp_path_factory.mktemp("effects")
    effects = shared / "effects.txt"
    script = shared / "effect.sh"
    script.write_text(
        '#!/bin/sh\necho "$1 begun" >> "$EFFECTS"\nsleep "${1##*:}" & wait\n'
        'echo "$1 done" >> "$EFFECTS"\n'
    )
    script.chmod(0o755)
    programs = shared / "programs.json"
    programs.write_text(
        json.dumps(
            {
                "effect": {
                    "argv": ["/bin/sh", str(script)],
                    "env": {"EFFECTS": str(effects)},
                    "timeout_s": 60,
                }
            }
        )
    )
    with (
        Stack(workers=1, processes=2, HARNESS_TOOL__PROGRAMS=str(programs)) as running,
        running.client() as client,
    ):
        running.effects = effects
        for body in (
            agent("quick", [{"text": "done"}]),
            agent("slow", [{"text": "one", "continue": True}, {"text": "done", "delay_s": 20}]),
            agent("medium", [{"text": "one", "continue": True}, {"text": "done", "delay_s": 4}]),
            agent("effect4", program("w:4"), "run_program"),
            agent("effect4b", program("v:4"), "run_program"),
            agent("effect30", program("w:30"), "run_program"),
        ):
            assert client.post("/v1/agents", json=body).status_code == 201
        yield running


@pytest.fixture(autouse=True)
def both(stack):
    """Begin when both processes take work: the test before may have ended one of them."""
    stack.wait_for_workers(2)


def start(stack: Stack, name: str) -> str:
    with stack.client() as client:
        answer = client.post("/v1/runs", json={"agent": name, "input": uuid.uuid4().hex})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def row(stack: Stack, run: str) -> dict[str, Any]:
    return stack.query(
        "SELECT r.*, w.pid FROM runs r LEFT JOIN workers w ON w.incarnation = r.claimed_by "
        "WHERE r.id = %s",
        uuid.UUID(hex=run.removeprefix("run_")),
    )[0]


def until(
    stack: Stack, run: str, holds: Callable[[dict[str, Any]], object], seconds: float
) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    seen: dict[str, Any] = {}
    while time.monotonic() < deadline:
        seen = row(stack, run)
        if holds(seen):
            return seen
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s; the run is {seen}")


def ended(status: str) -> Callable[[dict[str, Any]], object]:
    return lambda r: r["status"] == status


def in_step(step: int) -> Callable[[dict[str, Any]], object]:
    return lambda r: r["step"] == step - 1 and r["pid"] is not None


def test_a_stopped_worker_hands_its_run_over(stack):
    """SIGTERM: grace, then the model step is given back and done elsewhere; nobody died."""
    run = start(stack, "slow")
    pid = until(stack, run, in_step(2), 10)["pid"]
    psutil.Process(pid).terminate()
    after = until(stack, run, lambda r: r["pid"] not in {None, pid}, 3 + 5)
    assert after["deaths"] == 0
    with stack.client() as client:
        client.post(f"/v1/runs/{run}/cancel", json={})
    until(stack, run, ended("cancelled"), 5)


def test_a_frozen_worker_loses_its_run_and_its_late_commit_is_refused(stack):
    """INV6, INV8: SIGSTOP beyond the lease, recovery by another, SIGCONT: one commit."""
    run = start(stack, "medium")
    pid = until(stack, run, in_step(2), 10)["pid"]
    psutil.Process(pid).suspend()
    try:
        until(stack, run, lambda r: r["pid"] not in {None, pid}, 2 * LEASE_S + 5)
    finally:
        psutil.Process(pid).resume()
    until(stack, run, ended("succeeded"), 15)
    steps = stack.query(
        "SELECT step, count(*) AS n FROM events "
        "WHERE run_id = %s AND type = 'step.completed' GROUP BY 1",
        uuid.UUID(hex=run.removeprefix("run_")),
    )
    assert {(s["step"], s["n"]) for s in steps} == {(1, 1), (2, 1)}


def test_a_frozen_worker_works_again(stack):
    """A process that was condemned and came back takes runs like any other."""
    time.sleep(2 * LEASE_S)
    rows = stack.query(
        "SELECT died_at FROM workers WHERE seen_at > clock_timestamp() - interval '3 s'"
    )
    assert [r["died_at"] for r in rows] == [None, None]


def test_a_message_lost_before_its_start_is_rung_again(stack):
    """Frozen before BLMPOP's answer is read, then killed: the doorbell is gone, the run is not."""
    supervisor = psutil.Process(stack.processes["worker-0"].pid)
    children = supervisor.children()
    for child in children:
        child.suspend()
    run = start(stack, "quick")
    time.sleep(0.5)
    killed_at = stack.now()
    for child in children:
        child.send_signal(signal.SIGKILL)
    stack.wait_for_workers(1, since=killed_at)
    until(stack, run, ended("succeeded"), 2 * LEASE_S + 10)


def test_a_frozen_redis_does_not_hold_a_request(stack):
    """INV11: the row is there, so the answer is 202, soon; the doorbell comes later."""
    pid = stack.valkey.pid
    psutil.Process(pid).suspend()
    try:
        begun = time.monotonic()
        run = start(stack, "quick")
        took = time.monotonic() - begun
    finally:
        psutil.Process(pid).resume()
    assert took < 3.0
    until(stack, run, ended("succeeded"), 30)


def test_cut_broker_connections_repeat_nothing(stack):
    """Every client connection of Valkey is closed in mid-step: no step twice, consuming goes on."""
    runs = [start(stack, "medium") for _ in range(5)]
    for run in runs:
        until(stack, run, in_step(2), 10)
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    for run in runs:
        until(stack, run, ended("succeeded"), 20)
        assert row(stack, run)["deaths"] == 0
    until(stack, start(stack, "quick"), ended("succeeded"), 10)


def test_a_queued_run_is_cancelled_at_once(stack):
    """INV9 (queued): with no room to run, cancel needs no worker."""
    stack.query("UPDATE tenant_slots SET max_running = 0 RETURNING 1")
    try:
        run = start(stack, "quick")
        assert row(stack, run)["status"] == "queued"
        begun = time.monotonic()
        with stack.client() as client:
            answer = client.post(f"/v1/runs/{run}/cancel", json={"reason": "not needed"})
        assert answer.json()["status"] == "cancelled"
        assert time.monotonic() - begun < 1.0
    finally:
        stack.query("UPDATE tenant_slots SET max_running = 1000 RETURNING 1")


def test_a_model_call_is_cancelled_soon(stack):
    """INV9 (model)."""
    run = start(stack, "slow")
    until(stack, run, in_step(2), 10)
    begun = time.monotonic()
    with stack.client() as client:
        client.post(f"/v1/runs/{run}/cancel", json={})
    until(stack, run, ended("cancelled"), 5)
    assert time.monotonic() - begun < 5.0


def descendants_named(word: str) -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter(["cmdline"]) if word in " ".join(p.info["cmdline"] or [])
    ]


def test_a_tool_is_cancelled_with_its_grandchildren(stack):
    """INV9 (tool): the process group is gone, and the effect is unknown, not failed."""
    run = start(stack, "effect30")
    until(stack, run, in_step(2), 10)
    deadline = time.monotonic() + 5
    while not descendants_named("sleep 30") and time.monotonic() < deadline:
        time.sleep(0.02)
    begun = time.monotonic()
    with stack.client() as client:
        client.post(f"/v1/runs/{run}/cancel", json={})
    until(stack, run, ended("cancelled"), 5)
    assert time.monotonic() - begun < 4.5  # 2 s, and the program's 2 s to end by itself
    assert descendants_named("sleep 30") == []
    calls = stack.query(
        "SELECT status FROM tool_calls WHERE run_id = %s", uuid.UUID(hex=run.removeprefix("run_"))
    )
    assert [c["status"] for c in calls] == ["unknown"]


def test_a_write_is_not_repeated_after_a_kill(stack):
    """INV3: killed during the effect: begun once, unknown, the run waits for a person."""
    before = lines(stack.effects)
    run = start(stack, "effect4")
    pid = until(stack, run, in_step(2), 10)["pid"]
    deadline = time.monotonic() + 5
    while len(lines(stack.effects)) == len(before) and time.monotonic() < deadline:
        time.sleep(0.02)
    psutil.Process(pid).send_signal(signal.SIGKILL)
    until(stack, run, ended("waiting_approval"), 2 * LEASE_S + 5)
    begun = [line for line in lines(stack.effects)[len(before) :] if line.endswith("begun")]
    assert begun == ["w:4 begun"]


def test_a_write_under_way_is_awaited_by_a_stopping_worker(stack):
    """SIGTERM during an effect: its result is recorded, the run goes on elsewhere, the effect is
    single.
    """
    before = lines(stack.effects)
    run = start(stack, "effect4b")
    pid = until(stack, run, in_step(2), 10)["pid"]
    psutil.Process(pid).terminate()
    until(stack, run, ended("succeeded"), 20)
    mine = [line for line in lines(stack.effects)[len(before) :] if line.startswith("v:4")]
    assert mine == ["v:4 begun", "v:4 done"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_pickled_message_is_refused(stack):
    """Only JSON is accepted: a pickle that would make a file makes none, and work goes on."""
    mark = stack.folder / "pickled"
    body = f"cposix\nsystem\n(S'touch {mark}'\ntR."
    message = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "binary",
        "content-type": "application/x-python-serialize",
        "headers": {"lang": "py", "task": "harness.step", "id": "x", "root_id": "x", "group": None},
        "properties": {
            "correlation_id": "x", "delivery_mode": 2, "delivery_tag": "x", "priority": 0,
            "delivery_info": {"exchange": "", "routing_key": "steps.default"},
            "body_encoding": "base64",
        },
    }  # fmt: skip
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.lpush("harness:steps.default", json.dumps(message))
    until(stack, start(stack, "quick"), ended("succeeded"), 10)
    assert not mark.exists()


def test_a_worker_survives_a_postgres_restart(stack):
    """INV10, INV1: the connection is gone in mid-step; the finished step is committed when it is
    back.
    """
    run = start(stack, "medium")
    until(stack, run, in_step(2), 10)
    stack.postgres.kill_immediate()
    time.sleep(1.0)
    stack.postgres.start()
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            if row(stack, run)["status"] == "succeeded":
                break
        except psycopg.OperationalError:
            time.sleep(0.2)
    assert row(stack, run)["status"] == "succeeded"
    with stack.client() as client:
        assert client.get("/readyz").status_code == 200
        assert httpx.codes.is_success(client.get(f"/v1/runs/{run}").status_code)
