"""Doorbells go to whoever has a place for them: none waits behind a long step of a full process."""

from __future__ import annotations

import time
import uuid

import pytest
import redis

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LONG_S = 60.0


def test_a_process_takes_no_more_doorbells_than_it_has_places():
    """Its one free place finds two: the other is for a process that is idle, not to wait here."""
    with (
        Stack(
            workers=1,
            processes=1,
            HARNESS_WORKER__CONCURRENCY="2",
            HARNESS_SCHEDULER__WORKER_FACTOR="4",
        ) as stack,
        stack.client() as client,
    ):
        for name, delay_s in (("long", LONG_S), ("medium", 2.0), ("short", 0.0)):
            script = [{"text": "done", "delay_s": delay_s}]
            spec = {"model": "scripted/x", "model_options": {"script": script}}
            assert client.post("/v1/agents", json={"name": name, "spec": spec}).status_code == 201
        _, medium, second, short = [
            start(client, name) for name in ("long", "medium", "long", "short")
        ]
        assert client.get(f"/v1/runs/{medium}", params={"wait": 20}).json()["status"] == "succeeded"
        wait_for_owner(stack, second)
        time.sleep(0.3)  # whatever it takes at once, it has taken
        seen = client.get(f"/v1/runs/{short}").json()
        assert (seen["status"], seen["step"]) == ("running", 0), "let in, and rung for"
        with redis.Redis.from_url(stack.valkey.url) as broker:
            keys = broker.scan_iter("harness:steps.default*", _type="list")
            assert sum(broker.llen(key) for key in keys) == 1, "left for whoever has a place"


def wait_for_owner(stack: Stack, run: str) -> None:
    """Wait until a process works on a run."""
    for _ in range(300):
        found = stack.query(
            "SELECT 1 AS n FROM runs WHERE id = %s AND claimed_by IS NOT NULL",
            uuid.UUID(hex=run.removeprefix("run_")),
        )
        if found:
            return
        time.sleep(0.01)
    raise AssertionError(f"nobody works on {run}")


def start(client, name: str) -> str:
    answer = client.post("/v1/runs", json={"agent": name, "input": uuid.uuid4().hex})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])
