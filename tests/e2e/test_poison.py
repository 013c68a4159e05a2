"""Runs that kill the worker process which holds them: they end alone, their neighbours finish.

INV15 and INV18, on real processes. The poison is a tool that ends its own process.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NEIGHBOURS = [150, pytest.param(900, marks=pytest.mark.nightly)]
STEPS = 4
LINGER_S = 3.0


def agent(
    name: str, script: list[dict[str, Any]], *tools: str, queue: str = "steps.default"
) -> dict[str, Any]:
    return {
        "name": name,
        "spec": {
            "model": f"scripted/{name}",
            "tools": list(tools),
            "queue": queue,
            "model_options": {"script": script},
        },
    }


def poison(tool: str, **arguments: object) -> list[dict[str, Any]]:
    return [{"text": "do it", "tools": [{"name": tool, "input": arguments}]}, {"text": "done"}]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    mark = tmp_path_factory.mktemp("poison") / "mark"
    walk = [{"text": str(n), "delay_s": 0.5, "continue": True} for n in range(1, STEPS)]
    later: list[dict[str, Any]] = [
        {"text": "one", "delay_s": 4.0, "continue": True},
        {"text": "done"},
    ]
    with (
        Stack(
            processes=2,
            POISON=str(mark),
            HARNESS_WORKER__TOOLS='["tests.e2e.poison_tools"]',
            HARNESS_WORKER__CONCURRENCY="100",
            # A machine that is busy with other tests must not starve a process to death.
            HARNESS_WORKER__LEASE_S="15",
            HARNESS_WORKER__QUARANTINE_LINGER_S=str(LINGER_S),
        ) as running,
        running.client() as client,
    ):
        running.effects = mark
        for body in (
            agent("walker", [*walk, {"text": "done", "delay_s": 0.5}]),
            agent("killer", poison("kill_process"), "kill_process"),
            agent("exiter", poison("exit_hard"), "exit_hard"),
            # Nobody serves this queue: the test makes a suspect of the run and moves it.
            agent("suspect", later, queue="steps.later"),
            agent("leaver", poison("kill_later"), "kill_later", queue="steps.later"),
        ):
            assert client.post("/v1/agents", json=body).status_code == 201
        yield running


@pytest.fixture(autouse=True)
def armed(stack):
    stack.effects.touch()


def tell(text: str) -> None:
    print(text)  # noqa: T201 - shown when the test fails, and with -s


def submit(stack: Stack, name: str, count: int = 1) -> list[str]:
    with stack.client() as client, ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda n: client.post("/v1/runs", json={"agent": name, "input": str(n)}), range(count)
        )
        return [str(a.json()["id"]) for a in answers]


def uuids(runs: list[str]) -> list[uuid.UUID]:
    return [uuid.UUID(hex=r.removeprefix("run_")) for r in runs]


def rows(stack: Stack, runs: list[str]) -> list[dict[str, Any]]:
    return stack.query(
        "SELECT r.*, w.name AS worker, w.pid FROM runs r "
        "LEFT JOIN workers w ON w.incarnation = r.claimed_by WHERE r.id = ANY(%s)",
        uuids(runs),
    )


def until(
    stack: Stack, runs: list[str], holds: Callable[[dict[str, Any]], object], seconds: float
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + seconds
    seen: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        seen = rows(stack, runs)
        if all(holds(r) for r in seen):
            return seen
        time.sleep(0.1)
    left = [r for r in seen if not holds(r)]
    keys = ("status", "step", "deaths", "worker", "rings", "queue", "stop_reason")
    told = [{k: r[k] for k in keys} for r in left[:3]]
    raise AssertionError(f"{len(left)} of {len(runs)} not within {seconds} s: {told}")


def ended(row: dict[str, Any]) -> bool:
    return row["finished_at"] is not None


def deaths_of(stack: Stack, runs: list[str]) -> list[dict[str, Any]]:
    return stack.query(
        "SELECT run_id, payload, at FROM events WHERE run_id = ANY(%s) AND type = 'run.recovered' "
        "ORDER BY run_id, seq",
        uuids(runs),
    )


def check_neighbours(stack: Stack, runs: list[str]) -> None:
    """Check that each succeeded, each step was committed once, and nobody took it for poison."""
    ends = {(r["status"], r["stop_reason"], r["step"], r["deaths"]) for r in rows(stack, runs)}
    assert ends == {("succeeded", "final_answer", STEPS, 0)}
    steps = stack.query(
        "SELECT run_id FROM events WHERE run_id = ANY(%s) AND type = 'step.completed' GROUP BY 1 "
        "HAVING array_agg(step ORDER BY step) <> array(SELECT generate_series(1, %s))",
        uuids(runs),
        STEPS,
    )
    assert steps == []
    assert not [d for d in deaths_of(stack, runs) if d["payload"]["solo"]]


def check_poisoned(stack: Stack, run: str, why: str) -> dict[str, Any]:
    """Check the verdict and its evidence; returns the run as the API shows it."""
    told = [d["payload"] for d in deaths_of(stack, [run])]
    assert [d["solo"] for d in told] == [False, False, True]
    with stack.client() as client:
        shown: dict[str, Any] = client.get(f"/v1/runs/{run}").json()
    assert (shown["status"], shown["stop_reason"]) == ("failed", "poisoned")
    assert shown["error"]["code"] == "POISONED"
    assert shown["error"]["detail"]["step"] == 2
    evidence = shown["error"]["detail"]["deaths"]
    assert evidence == [{k: d[k] for k in ("worker", "why", "solo")} for d in told]
    assert {d["why"] for d in evidence} == {why}
    assert [d["worker"].split("-")[0] for d in evidence] == ["steps", "steps", "quarantine"]
    return shown


def quarantines(stack: Stack) -> list[psutil.Process]:
    """Return the live quarantine processes of the supervisor."""
    found = []
    for child in psutil.Process(stack.processes["worker-0"].pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if child.environ().get("HARNESS_WORKER_NAME", "").startswith("quarantine-"):
                found.append(child)
    return found


@pytest.mark.parametrize("neighbour_count", NEIGHBOURS)
def test_poison_ends_alone_and_its_neighbours_do_not_notice(stack, neighbour_count):
    begun = time.monotonic()
    neighbours = submit(stack, "walker", neighbour_count // 2)
    (bad,) = submit(stack, "killer")
    neighbours += submit(stack, "walker", neighbour_count - len(neighbours))
    submitted_s = time.monotonic() - begun
    (end,) = until(stack, [bad], ended, 120)
    poisoned_s = (end["finished_at"] - end["created_at"]).total_seconds()
    until(stack, neighbours, ended, 240)
    all_s = time.monotonic() - begun
    check_neighbours(stack, neighbours)
    check_poisoned(stack, bad, "killed by signal 9")
    told = [d["payload"]["deaths"] for d in deaths_of(stack, neighbours)]
    tell(
        f"submitted in {submitted_s:.1f} s, poisoned {poisoned_s:.1f} s after its start, all ended "
        f"after {all_s:.1f} s; neighbours lost a process {told.count(1)} times, and for a second "
        f"time {told.count(2)} times"
    )
    assert told, "the poison shared its processes"

    stack.effects.unlink()
    with stack.client() as client:
        answer = client.post(f"/v1/runs/{bad}/retry", json={})
        assert answer.status_code == 202, answer.text
        again = client.get(f"/v1/runs/{answer.json()['id']}", params={"wait": 60}).json()
    assert again["status"] == "succeeded"
    assert "deaths" not in rows(stack, [again["id"]])[0]["memo"]


def test_processes_that_end_hard_end_only_their_own_runs(stack):
    """A library that aborts (or the kernel, when memory is out) says nothing either: three such
    runs at once, and those that shared a process with them twice run alone for a step.
    """
    begun = time.monotonic()
    neighbours = submit(stack, "walker", 30)
    bad = submit(stack, "exiter", 3)
    until(stack, bad, ended, 180)
    poisoned_s = time.monotonic() - begun
    until(stack, neighbours, ended, 240)
    tell(f"3 poisoned after {poisoned_s:.1f} s, 30 neighbours {time.monotonic() - begun:.1f} s")
    check_neighbours(stack, neighbours)
    for run in rows(stack, bad):
        assert (run["status"], run["stop_reason"]) == ("failed", "poisoned")
        last = run["error"]["detail"]["deaths"][-1]
        assert last["solo"]
        assert last["why"] == "ended with exit code 134"
        assert last["worker"].startswith("quarantine-")


def suspect(stack: Stack, name: str = "suspect") -> str:
    """Start a run and make a suspect of it, as two deaths would."""
    (run,) = submit(stack, name)
    stack.query(
        "UPDATE runs SET deaths = 2, queue = 'steps.default', wake_at = clock_timestamp() "
        "WHERE id = %s RETURNING id",
        uuids([run])[0],
    )
    return run


def until_no_quarantine(stack: Stack) -> None:
    """Wait for the quarantine to linger out and end, as it does when no suspect waits."""
    deadline = time.monotonic() + LINGER_S + 30
    while quarantines(stack) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert quarantines(stack) == []


def test_a_suspect_that_succeeds_goes_back_to_its_queue_and_the_quarantine_ends(stack):
    # One that is just about to end would give the run back in the middle of its step.
    until_no_quarantine(stack)
    begun = time.monotonic()
    run = suspect(stack)
    (held,) = until(stack, [run], lambda r: (r["worker"] or "").startswith("quarantine-"), 60)
    tell(f"taken up by the quarantine after {time.monotonic() - begun:.1f} s")
    with stack.client() as client:
        shown = {w["name"]: w for w in client.get("/v1/workers").json()["data"]}
    mine = shown[held["worker"]]
    assert (mine["concurrency"], mine["queues"]) == (1, ["steps.default.quarantine"])
    (end,) = until(stack, [run], ended, 120)
    assert (end["status"], end["deaths"], end["step"]) == ("succeeded", 0, 2)
    by = stack.query(
        "SELECT c.worker = %s AS here FROM checkpoints c WHERE run_id = %s ORDER BY step",
        held["claimed_by"],
        end["id"],
    )
    assert [c["here"] for c in by] == [True, False]
    until_no_quarantine(stack)
    left = stack.query("SELECT died_at FROM workers WHERE incarnation = %s", held["claimed_by"])
    assert left == [], "it left in an orderly way"


def test_the_death_of_the_supervisor_is_not_the_suspects_own(stack):
    """Its quarantine process is told to stop, not killed: the run is given back."""
    run = suspect(stack)
    (held,) = until(stack, [run], lambda r: (r["worker"] or "").startswith("quarantine-"), 60)
    stack.kill("worker-0")
    psutil.wait_procs([psutil.Process(held["pid"])] if psutil.pid_exists(held["pid"]) else [], 15)
    stack.start("worker-0")
    (end,) = until(stack, [run], ended, 120)
    assert (end["status"], end["stop_reason"]) == ("succeeded", "final_answer")
    assert deaths_of(stack, [run]) == []


def test_a_thread_that_outlived_its_call_kills_no_other_suspect(stack):
    """The first suspect's tool ignores its timeout and kills the process five seconds later."""
    first = suspect(stack, "leaver")
    until(stack, [first], lambda r: r["step"] == 1, 60)
    stack.query("UPDATE runs SET deaths = 2 WHERE id = %s RETURNING id", uuids([first])[0])
    until(stack, [first], lambda r: r["step"] >= 1 and r["worker"], 60)
    second = [suspect(stack) for _ in range(2)]
    ends = until(stack, second, ended, 120)
    assert {(e["status"], e["deaths"]) for e in ends} == {("succeeded", 0)}
    assert deaths_of(stack, second) == []


def test_a_frozen_quarantine_process_is_a_death_like_any_other(stack):
    run = suspect(stack)
    (held,) = until(stack, [run], lambda r: (r["worker"] or "").startswith("quarantine-"), 60)
    frozen = psutil.Process(held["pid"])
    frozen.suspend()
    try:
        (end,) = until(stack, [run], ended, 120)
    finally:
        frozen.kill()
    assert (end["status"], end["stop_reason"]) == ("failed", "poisoned")
    assert "no heartbeat" in json.dumps(end["error"]) or "connection" in json.dumps(end["error"])
