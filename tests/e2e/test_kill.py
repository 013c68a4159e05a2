"""Any one process dies while 200 runs are under way: all finish, no step twice, no gap in the
events.
"""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import redis

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RUNS = 200
AGENT = {
    "name": "walker",
    "spec": {
        "model": "scripted/walker",
        "tools": ["calculate"],
        "max_turns": 50,
        "model_options": {
            "script": [
                {
                    "text": "one",
                    "delay_s": 0.3,
                    "tools": [{"name": "calculate", "input": {"expression": "1+1"}}],
                },
                {
                    "text": "two",
                    "delay_s": 0.3,
                    "tools": [{"name": "calculate", "input": {"expression": "2+2"}}],
                },
                {"text": "three", "delay_s": 0.3, "continue": True},
                {"text": "done", "delay_s": 0.3},
            ]
        },
    },
}
STEPS = 6


def kill_worker(stack: Stack, chance: random.Random) -> None:
    """Kill -9 one worker process (its supervisor starts another)."""
    children = psutil.Process(stack.processes["worker-0"].pid).children()
    children[chance.randrange(len(children))].send_signal(signal.SIGKILL)


def kill_leader(stack: Stack, chance: random.Random) -> None:
    """Kill -9 the scheduler that leads."""
    del chance
    rows = stack.query("SELECT holder_name FROM leader WHERE name = 'scheduler'")
    pid = int(str(rows[0]["holder_name"]).split("@")[0].split("-")[1])
    name = next(n for n, p in stack.processes.items() if p.pid == pid)
    stack.kill(name)
    stack.start(name)


def kill_api(stack: Stack, chance: random.Random) -> None:
    """Kill -9 one of two APIs and start it again."""
    n = chance.randrange(2)
    stack.kill(f"api-{n}")
    stack.start(f"api-{n}")
    stack.wait_for_api(n)


def flush(stack: Stack, chance: random.Random) -> None:
    """Empty Valkey: every doorbell and lease is gone."""
    del chance
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()


def restart_valkey(stack: Stack, chance: random.Random) -> None:
    """Kill -9 Valkey, leave it away for a second, start it again on the same port."""
    del chance
    stack.valkey.kill()
    time.sleep(1.0)
    stack.valkey.start()


@pytest.fixture(scope="module")
def stack():
    with Stack(apis=2, schedulers=2, processes=2) as running:
        with running.client() as client:
            assert client.post("/v1/agents", json=AGENT).status_code == 201
        yield running


def submit(stack: Stack, count: int) -> list[str]:
    """Submit runs to both APIs in turn, as a client that retries with the same key would."""
    clients = [stack.client(0), stack.client(1)]
    ids = []
    for n in range(count):
        answer = clients[n % 2].post(
            "/v1/runs",
            json={"agent": "walker", "input": f"walk {n}"},
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    for client in clients:
        client.close()
    return ids


def wait_for_all(stack: Stack, ids: list[str], seconds: float) -> None:
    """Wait until every run has ended."""
    deadline = time.monotonic() + seconds
    uuids = [uuid.UUID(hex=i.removeprefix("run_")) for i in ids]
    left: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        left = stack.query(
            "SELECT id, status, step, version, claim_id, wake_at - clock_timestamp() AS due "
            "FROM runs WHERE id = ANY(%s) AND finished_at IS NULL",
            uuids,
        )
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"{len(left)} of {len(ids)} runs are stuck: {left[:3]}")


def audit(stack: Stack, ids: list[str]) -> None:
    """Check from the outside what the platform promises."""
    uuids = [uuid.UUID(hex=i.removeprefix("run_")) for i in ids]
    runs = stack.query("SELECT status, step, stop_reason FROM runs WHERE id = ANY(%s)", uuids)
    assert {(r["status"], r["step"]) for r in runs} == {("succeeded", STEPS)}
    assert len(runs) == len(ids)
    twice = stack.query(
        "SELECT run_id, step, count(*) FROM events "
        "WHERE run_id = ANY(%s) AND type = 'step.completed' GROUP BY 1, 2 HAVING count(*) <> 1",
        uuids,
    )
    assert twice == []
    checkpoints = stack.query(
        "SELECT run_id FROM checkpoints WHERE run_id = ANY(%s) GROUP BY 1 "
        "HAVING array_agg(step ORDER BY step) <> array(SELECT generate_series(1, %s))",
        uuids,
        STEPS,
    )
    assert checkpoints == []
    gaps = stack.query(
        "SELECT run_id FROM events WHERE run_id = ANY(%s) GROUP BY 1 "
        "HAVING max(seq) <> count(*) OR min(seq) <> 1",
        uuids,
    )
    assert gaps == []
    ends = stack.query(
        "SELECT run_id FROM events WHERE run_id = ANY(%s) "
        "AND type IN ('run.completed', 'run.failed', 'run.cancelled') "
        "GROUP BY 1 HAVING count(*) <> 1",
        uuids,
    )
    assert ends == []
    slots = stack.query("SELECT running FROM tenant_slots")
    assert [s["running"] for s in slots] == [0]


@pytest.mark.parametrize(
    "fault", [kill_worker, kill_leader, kill_api, flush, restart_valkey], ids=lambda f: f.__name__
)
def test_200_runs_survive(stack: Stack, fault: Callable[[Stack, random.Random], None]):
    """INV1, INV2, INV4, INV5, INV7, INV8."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    ids = submit(stack, RUNS)
    time.sleep(chance.uniform(0.1, 0.6))
    fault(stack, chance)
    wait_for_all(stack, ids, 90)
    audit(stack, ids)
