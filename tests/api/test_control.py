"""Control of runs over HTTP: busy sessions, pause, questions, steering, forks, sessions at once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from harness_common.core.ids import decode, encode
from harness_common.core.inputs import Admit, StepFailed
from harness_common.core.step import CallOutcome, Failure, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from harness_worker.advance import answer as work
from tests.store.play import WHEN, Play, ran, say, sql
from tests.worker.runtime import make_runtime

RUN = {"agent": "a", "input": "hi"}


async def post(api, path: str, status: int = 202, **body) -> Any:
    answer = await api.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def start(api, **more) -> Any:
    return await post(api, "/v1/runs", 202, **RUN, **more)


async def get(api, run: Any) -> Any:
    return (await api.get(f"/v1/runs/{run['id']}")).json()


def id_of(run: Any) -> UUID:
    return decode("run", run["id"])


async def admit(play: Play, run: Any) -> None:
    """Grant a turn, as the scheduler does."""
    assert await play.apply(await play.read(id_of(run)), Admit())


async def fail(play: Play, run: Any, code: str = "BAD") -> None:
    await play.step(id_of(run), StepFailed(Failure("permanent", code, "no"), WHEN))


def asks(*questions: str, choices: tuple[str, ...] = ()) -> ToolsWaiting:
    """Build the end of a tools step that asks a person."""
    return ToolsWaiting(
        tuple(
            CallOutcome(
                i, f"call_{i}", "ask_user", CallStatus.RUNNING, "",
                wait=Wait(i, "input", None, {"question": q, "choices": list(choices)}),
            )
            for i, q in enumerate(questions)
        )
    )  # fmt: skip


async def texts(play: Play, run: Any) -> list[tuple[str, str]]:
    return [(m.role, m.text()) for m in await play.messages(id_of(run))]


# ── a busy session ───────────────────────────────────────────────────────────────────────────────


async def test_runs_behind_a_busy_session_keep_their_order(api, play):
    first = await start(api)
    more = {"session_id": first["session_id"], "on_busy": "enqueue"}
    second, third = await start(api, **more), await start(api, **more)
    assert [(r["status"], r["held_for"]) for r in (second, third)] == [("queued", "session")] * 2
    rows = await sql(play.db, "SELECT id, prev_run_id FROM runs ORDER BY id")
    assert [(r["id"], r["prev_run_id"]) for r in rows] == [
        (id_of(first), None),
        (id_of(second), id_of(first)),
        (id_of(third), id_of(second)),
    ]
    refused = await api.post("/v1/runs", json=RUN | {"session_id": first["session_id"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_BUSY")
    assert "on_busy" in refused.json()["detail"]


async def test_interrupt_stops_the_run_at_its_worker_and_starts_the_next(api, play, redis):
    first = await start(api)
    await play.claim(id_of(first))
    more = {"session_id": first["session_id"], "on_busy": "interrupt"}
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(f"harness:worker:{play.worker.hex}")
        await pubsub.get_message(timeout=5)
        second = await start(api, **more)
        heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
    assert heard is not None
    assert id_of(first).hex.encode() in heard["data"]
    assert (second["status"], second["held_for"]) == ("queued", "session")
    assert (await get(api, first))["status"] == "cancelling"


async def test_an_interrupt_that_is_repeated_does_not_stop_what_it_started(api):
    first = await start(api)
    body = RUN | {"session_id": first["session_id"], "on_busy": "interrupt"}
    answers = [
        await api.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(3)
    ]
    assert len({a.json()["id"] for a in answers}) == 1
    assert [a.headers.get("idempotency-replayed") for a in answers] == [None, "true", "true"]
    assert (await get(api, answers[0].json()))["status"] == "running"
    assert (await get(api, first))["status"] == "cancelled"


async def test_an_interrupt_that_can_start_nothing_stops_nothing(api):
    first = await start(api)
    body = RUN | {"session_id": first["session_id"], "on_busy": "interrupt", "agent": "nobody"}
    assert (await api.post("/v1/runs", json=body)).status_code == 404
    assert (await get(api, first))["status"] == "running"


async def test_a_message_steers_the_run_under_way_at_its_next_model_step(api, play):
    run = await start(api)
    owned = await play.claim(id_of(run))
    body = RUN | {"input": "hurry", "session_id": run["session_id"], "on_busy": "steer"}
    answer = await api.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["id"]) == (202, run["id"])
    assert answer.headers["harness-steered"] == "true"
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    await post(api, f"/v1/runs/{run['id']}/messages", text="please")
    await play.settle(owned, say("let me look", tools=["look"]))
    assert [r for r, _ in await texts(play, run)] == ["user", "assistant"], "never before a result"
    await play.step(id_of(run), ran("seen"))
    assert (await texts(play, run))[3:] == [("user", "hurry"), ("user", "please")]


async def test_a_message_to_a_session_at_rest_starts_a_run(api, play):
    run = await start(api)
    await play.step(id_of(run), say())
    answer = await api.post(
        "/v1/runs", json=RUN | {"session_id": run["session_id"], "on_busy": "steer"}
    )
    assert answer.json()["id"] != run["id"]
    assert "harness-steered" not in answer.headers


async def test_what_does_not_go_together_names_the_field(api):
    for body, field in (
        ({"on_busy": "steer"}, "session_id"),
        ({"concurrency_max": 2}, "concurrency_key"),
        ({"concurrency_key": ""}, "concurrency_key"),
        ({"concurrency_key": "x" * 201}, "concurrency_key"),
        ({"concurrency_key": "k", "concurrency_max": 0}, "concurrency_max"),
        ({"concurrency_key": "k", "concurrency_max": 10_001}, "concurrency_max"),
        ({"on_busy": "wait"}, "on_busy"),
    ):
        answer = await api.post("/v1/runs", json=RUN | body)
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    run = await start(api, concurrency_key="k", concurrency_max=2)
    assert (run["concurrency_key"], run["held_for"]) == ("k", "key")


async def test_twins_of_a_busy_session_never_make_a_500(api):
    run = await start(api)
    body = RUN | {"session_id": run["session_id"]}
    wants = [body | {"on_busy": b} for b in ("reject", "enqueue", "interrupt", "steer")] * 3
    answers = await asyncio.gather(*(api.post("/v1/runs", json=w) for w in wants))
    assert {a.status_code for a in answers} <= {202, 409}


# ── pause and resume ─────────────────────────────────────────────────────────────────────────────


async def test_a_run_is_paused_after_its_step_and_goes_on_when_resumed(api, play, redis):
    run = await start(api)
    path = f"/v1/runs/{run['id']}"
    owned = await play.claim(id_of(run))
    for _ in range(2):
        asked = await post(api, f"{path}/pause", reason="lunch")
        assert (asked["status"], asked["pause_requested"]) == ("running", True)
    await play.settle(owned, say(tools=["look"]))
    paused = await get(api, run)
    assert (paused["status"], paused["waiting"]) == ("paused", {"for": "resume"})
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe("harness:scheduler:nudge")
        await pubsub.get_message(timeout=5)
        resumed = await post(api, f"{path}/resume")
        assert await pubsub.get_message(ignore_subscribe_messages=True, timeout=5) is not None
    assert (resumed["status"], resumed["pause_requested"]) == ("queued", False)
    await admit(play, run)
    await play.step(id_of(run), ran("seen"))
    await play.step(id_of(run), say())
    for verb in ("pause", "resume"):
        refused = await post(api, f"{path}/{verb}", 409)
        assert refused["code"] == "RUN_OVER"


async def test_waiting_for_a_run_ends_at_a_pause(api):
    run = await start(api)
    await post(api, f"/v1/runs/{run['id']}/pause")
    async with asyncio.timeout(5):
        answer = await api.get(f"/v1/runs/{run['id']}", params={"wait": 30})
    assert answer.json()["status"] == "paused"


# ── questions ────────────────────────────────────────────────────────────────────────────────────


async def test_three_questions_in_a_row_are_answered(api, play):
    run = await start(api)
    for n in range(1, 4):
        await play.step(id_of(run), say(tools=["ask_user"]))
        await play.step(id_of(run), asks(f"question {n}?"))
        shown = await get(api, run)
        assert (shown["status"], shown["waiting"]["for"]) == ("waiting_input", "input")
        (call,) = shown["waiting"]["calls"]
        assert (call["call"], call["question"]) == (f"{2 * n}.0", f"question {n}?")
        given = await post(api, f"/v1/runs/{run['id']}/input", text=f"answer {n}")
        assert (given["status"], given["waiting"]) == ("queued", None)
        await admit(play, run)
        calls = await play.calls(id_of(run))
        assert (calls[-1]["status"], calls[-1]["result"]) == ("succeeded", f"answer {n}")
        await play.step(id_of(run), ran(f"answer {n}"))
    await play.step(id_of(run), say("thanks"))
    assert (await get(api, run))["output"] == "thanks"
    again = await post(api, f"/v1/runs/{run['id']}/input", 409, text="more")
    assert again["code"] == "NO_QUESTION"


async def test_errors_of_an_answer_say_what_is_open(api, play):
    run = await start(api)
    path = f"/v1/runs/{run['id']}/input"
    assert (await post(api, path, 409, text="x"))["code"] == "NO_QUESTION"
    await play.step(id_of(run), say(tools=["ask_user", "ask_user"]))
    await play.step(id_of(run), asks("one?", "two?", choices=("yes", "no")))
    unclear = await post(api, path, 422, text="yes")
    assert (unclear["field"], unclear["choices"]) == ("call", ["2.0", "2.1"])
    wrong = await post(api, path, 422, text="maybe", call="2.1")
    assert (wrong["field"], wrong["value"], wrong["choices"]) == ("text", "maybe", ["yes", "no"])
    nowhere = await post(api, path, 422, text="yes", call="4.0")
    assert (nowhere["field"], nowhere["value"]) == ("call", "4.0")
    assert (await post(api, path, text="no", call="2.1"))["status"] == "waiting_input"
    assert (await post(api, path, text="yes"))["status"] == "queued"


# ── retry, fork, dry run ─────────────────────────────────────────────────────────────────────────


async def played(api, play) -> Any:
    run = await start(api)
    for result in (say("let me look", tools=["look"]), ran("seen")):
        await play.step(id_of(run), result)
    return run


async def test_a_retry_can_begin_at_a_step(api, play):
    run = await played(api, play)
    path = f"/v1/runs/{run['id']}/retry"
    assert (await post(api, path, 409))["code"] == "NOT_RETRYABLE"
    await fail(play, run)
    wrong = await post(api, path, 422, from_step=4)
    assert (wrong["field"], wrong["value"], wrong["limit"]) == ("from_step", 4, 3)
    again = await post(api, path, from_step=2)
    assert (again["forked_from"], again["step"]) == ({"run_id": run["id"], "step": 1}, 1)
    assert again["next_kind"] == "tools"


async def test_a_fork_changes_input_model_and_tools_from_a_step_on(api, play):
    run = await played(api, play)
    fork = await post(
        api,
        f"/v1/runs/{run['id']}/fork",
        step=2,
        input="and in short",
        model="scripted/other",
        tools=["look", "chart"],
    )
    assert fork["forked_from"] == {"run_id": run["id"], "step": 2}
    assert fork["overrides"] == {"model": "scripted/other", "tools": ["look", "chart"]}
    assert (fork["dry_run"], fork["session_id"] != run["session_id"]) == (False, True)
    said = await texts(play, fork)
    assert said == [*await texts(play, run), ("user", "and in short")]
    assert [c["result"] for c in await play.calls(id_of(fork))] == ["seen"]
    fresh = await post(api, f"/v1/runs/{run['id']}/fork", step=0, input="another question")
    assert (fresh["step"], fresh["input"]) == (0, "another question")
    assert await texts(play, fresh) == [("user", "another question")]
    for body, field in (({"step": 3}, "step"), ({"agent_version": 9}, "agent_version")):
        refused = await api.post(f"/v1/runs/{run['id']}/fork", json=body)
        assert (refused.status_code, refused.json()["field"]) in {(422, field), (404, field)}


async def test_lineage_tells_what_is_around_a_run(api, play, tenant):
    run = await played(api, play)
    await fail(play, run)
    retry = await post(api, f"/v1/runs/{run['id']}/retry")
    fork = await post(api, f"/v1/runs/{retry['id']}/fork", step=2)
    early = await post(api, f"/v1/runs/{retry['id']}/fork", 422, step=1)
    assert (early["field"], early["value"]) == ("step", 1)
    assert "the run it came from" in early["detail"]
    await sql(
        play.db,
        "UPDATE runs SET parent_run_id = :p, parent_step = 2, parent_idx = 0, depth = 1 "
        "WHERE id = :r",
        p=id_of(run),
        r=id_of(child := await start(api)),
    )

    async def lineage(of: Any) -> Any:
        answer = await api.get(f"/v1/runs/{of['id']}/lineage")
        assert answer.status_code == 200, answer.text
        return answer.json()

    top = await lineage(run)
    assert top["ancestors"] == []
    assert [(c["run_id"], c["call"]) for c in top["children"]] == [(child["id"], "2.0")]
    assert [(f["run_id"], f["relation"], f["step"]) for f in top["forks"]] == [
        (retry["id"], "retry", 2)
    ]
    assert [a["run_id"] for a in (await lineage(fork))["ancestors"]] == [retry["id"], run["id"]]
    shown = await get(api, child)
    assert (shown["parent"], shown["depth"]) == ({"run_id": run["id"], "call": "2.0"}, 1)

    async def ids(**query) -> list[str]:
        answer = await api.get("/v1/runs", params=query)
        return [r["id"] for r in answer.json()["data"]]

    assert await ids(parent=run["id"]) == [child["id"]]
    assert await ids(retried="true") == [run["id"]]
    assert run["id"] not in await ids(retried="false")
    assert await ids(child="true") == [child["id"]]
    assert child["id"] not in await ids(child="false")
    assert await ids(error_code="BAD", stop_reason="error") == [run["id"]]
    assert await ids(error_code="OTHER") == []


async def test_a_dry_run_calls_no_model(api, play, db, tenant):
    run = await played(api, play)
    refused = await post(api, f"/v1/runs/{run['id']}/fork", 409, dry_run=True)
    assert refused["code"] == "RUN_NOT_OVER"
    await play.step(id_of(run), say("the answer"))
    dry = await post(api, f"/v1/runs/{run['id']}/fork", dry_run=True)
    assert (dry["dry_run"], dry["step"], dry["overrides"]) == (True, 0, {})
    asked = []

    async def chat(request) -> None:
        asked.append(request)

    runtime = await make_runtime(db, chat=chat)
    for _ in range(3):
        version = (await play.read(id_of(dry))).version
        await work(runtime, tenant.id, id_of(dry), version)
    ended = await get(api, dry)
    assert (ended["status"], ended["output"]) == ("succeeded", "the answer")
    assert asked == []


# ── sessions, signals ────────────────────────────────────────────────────────────────────────────


async def test_cancelling_a_session_stops_all_its_runs_and_leaves_it_open(api, play):
    first = await start(api)
    more = {"session_id": first["session_id"], "on_busy": "enqueue"}
    made = [first, await start(api, **more), await start(api, **more)]
    await play.claim(id_of(first))
    other = await start(api)
    path = f"/v1/sessions/{first['session_id']}"
    asked = (await post(api, f"{path}/cancel", reason="enough"))["data"]
    assert [r["id"] for r in asked] == [r["id"] for r in made[::-1]]
    assert [r["status"] for r in asked] == ["cancelled", "cancelled", "cancelling"]
    assert (await get(api, other))["status"] == "running"
    assert (await post(api, f"{path}/cancel"))["data"] == []
    assert (await api.get(path)).json()["status"] == "running"
    nowhere = encode("session", UUID(int=1))
    assert (await post(api, f"/v1/sessions/{nowhere}/cancel", 404))["field"] == "session_id"


@pytest.mark.parametrize(
    ("verb", "body"), [("pause", {}), ("messages", {"text": "x"}), ("cancel", {})]
)
async def test_a_change_is_told_to_who_watches(api, redis, verb, body):
    run = await start(api)
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(f"harness:live:{id_of(run).hex}")
        await pubsub.get_message(timeout=5)
        await post(api, f"/v1/runs/{run['id']}/{verb}", **body)
        heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
    assert heard is not None
    assert b"committed" in heard["data"]
