"""Schedules with real schedulers: kill -9 of the leading one loses no time and fires none twice."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

LEADER = "SELECT holder_name FROM leader WHERE name = 'scheduler' AND until > clock_timestamp()"
FIRED = "SELECT at, run_id, outcome FROM schedule_firings ORDER BY at"


def wait_for_firings(stack: Stack, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(stack.query(FIRED)) < count:
        assert time.monotonic() < deadline, stack.log_of("scheduler-1")[-2000:]
        time.sleep(0.2)


def test_each_second_fires_once_though_the_leading_scheduler_is_killed():
    with Stack(schedulers=2, processes=1) as stack, stack.client() as client:
        agent = {"name": "a", "spec": {"model": "scripted/x"}}
        agent["spec"]["model_options"] = {"script": [{"text": "ok"}]}  # type: ignore[index]
        assert client.post("/v1/agents", json=agent).is_success
        schedule = {
            "name": "tick",
            "when": {"every_s": 1},
            "run": {"agent": "a", "input": "{scheduled_at}"},
            "overlap": "allow",
            "catch_up": "all",
        }
        assert client.post("/v1/schedules", json=schedule).status_code == 201
        wait_for_firings(stack, 3)
        (row,) = stack.query(LEADER)
        pid = int(row["holder_name"].split("@")[0].removeprefix("scheduler-"))
        (name,) = [n for n, p in stack.processes.items() if p.pid == pid]
        stack.kill(name)
        wait_for_firings(stack, len(stack.query(FIRED)) + 8)
        assert client.post("/v1/schedules/tick/pause").is_success
        fired = stack.query(FIRED)
        assert {f["outcome"] for f in fired} == {"started"}
        steps = {b["at"] - a["at"] for a, b in pairwise(fired)}
        assert steps == {timedelta(seconds=1)}, "no time is lost"
        runs = client.get("/v1/runs", params={"tag": "schedule:tick", "limit": 200}).json()["data"]
        assert {r["id"] for r in runs} == {f"run_{f['run_id'].hex}" for f in fired}
        assert len({r["input"] for r in runs}) == len(runs), "none fires twice"
        for run in runs:
            view = client.get(f"/v1/runs/{run['id']}", params={"wait": 20}).json()
            assert view["status"] == "succeeded"
