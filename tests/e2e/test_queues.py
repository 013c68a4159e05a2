"""Queues by name: an agent names one, and only the workers that serve it do its steps."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_a_run_goes_to_the_workers_of_its_queue():
    with Stack(workers=1, processes=1) as stack, stack.client() as client:
        script = [{"text": "one", "continue": True}, {"text": "done"}]
        spec = {
            "model": "scripted/q",
            "queue": "steps.mine",
            "model_options": {"script": script},
        }
        assert client.post("/v1/agents", json={"name": "q", "spec": spec}).status_code == 201
        run = client.post("/v1/runs", json={"agent": "q", "input": "x"}).json()["id"]
        time.sleep(1.0)
        assert client.get(f"/v1/runs/{run}").json()["step"] == 0
        stack.add_worker("mine", "-Q", "steps.mine")
        answer = client.get(f"/v1/runs/{run}", params={"wait": 30}).json()
        assert answer["status"] == "succeeded"
        workers = stack.query(
            "SELECT DISTINCT w.queues FROM checkpoints c "
            "JOIN workers w ON w.incarnation = c.worker "
            "WHERE c.run_id = %s",
            uuid.UUID(hex=run.removeprefix("run_")),
        )
        assert [w["queues"] for w in workers] == [["steps.mine"]]
