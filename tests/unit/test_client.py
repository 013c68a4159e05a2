"""The client against a server that answers badly on purpose, by both surfaces where they could
differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness_api.client import (
    ApiError,
    AsyncClient,
    BadAnswer,
    Client,
    Event,
    Live,
    Target,
    Unreachable,
    find_target,
)
from harness_api.client.http import Http
from harness_api.client.runs import Runs
from harness_api.client.surface import Blocking
from harness_common.core.errors import Invalid
from tests.fakes.harness_server import (
    ARTIFACT,
    CUT,
    END,
    KEY,
    RUN,
    SESSION,
    Answer,
    FakeServer,
    event,
    page,
    problem,
    run_view,
    serve,
    stream,
)

RUNS = "/v1/runs"
ONE = f"/v1/runs/{RUN}"
BUSY = problem(503, "DATABASE_UNAVAILABLE", "not right now")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serve() as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.url, "hk_x_y", retries=2) as made:
        yield made


# -- one implementation, two surfaces ------------------------------------------------------------


def test_the_blocking_client_returns_results(server, client):
    server.on(f"POST {RUNS}", Answer(202, run_view()))
    run = client.runs.create(agent="a", input="hi", tags={"k": "v"})
    assert (run.id, run.status, run.agent.name, run.is_over) == (RUN, "queued", "a", False)
    (seen,) = server.seen
    assert seen.body == {"agent": "a", "input": "hi", "tags": {"k": "v"}}
    assert seen.headers["authorization"] == "Bearer hk_x_y"


async def test_the_async_client_returns_awaitables(server):
    server.on(f"POST {RUNS}", Answer(202, run_view()))
    server.on(f"GET {RUNS}", page(run_view(), run_view(), cursor="c"), page(run_view()))
    async with AsyncClient(server.url, "hk_x_y") as client:
        assert (await client.runs.create("a", "hi")).id == RUN
        assert len([run async for run in client.runs.list()]) == 3


async def test_the_blocking_client_works_inside_an_event_loop(server, client):
    server.on(f"GET {ONE}", Answer(body=run_view()))
    assert client.runs.get(RUN).id == RUN


def test_what_a_newer_server_adds_is_kept(server, client):
    server.on(f"GET {ONE}", Answer(body=run_view(mood="good")))
    assert client.runs.get(RUN).model_dump(mode="json")["mood"] == "good"


# -- repeating -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [BUSY, CUT, problem(502, "X", "x")], ids=["503", "cut", "502"])
def test_create_is_repeated_with_the_same_key(server, client, trouble):
    server.on(f"POST {RUNS}", trouble, Answer(202, run_view()))
    client.runs.create("a", "hi")
    first, second = (s.headers["idempotency-key"] for s in server.seen)
    assert first == second != ""


def test_a_key_of_the_caller_is_sent(server, client):
    server.on(f"POST {RUNS}", Answer(202, run_view()))
    client.runs.create("a", "hi", idempotency_key="mine")
    assert server.seen[0].headers["idempotency-key"] == "mine"


def test_repeating_is_bounded(server, client):
    server.on(f"GET {ONE}", BUSY)
    with pytest.raises(ApiError, match="not right now"):
        client.runs.get(RUN)
    assert len(server.seen) == 3


@pytest.mark.parametrize("trouble", [BUSY, CUT], ids=["503", "cut"])
def test_what_is_not_safe_is_not_repeated(server, client, trouble):
    server.on("POST /v1/sessions", trouble)
    with pytest.raises((ApiError, Unreachable)):
        client.sessions.create("t")
    assert len(server.seen) == 1


def test_a_long_retry_after_is_handed_to_the_caller(server, client):
    limited = problem(429, "LIMITED", "too many")
    limited.headers["Retry-After"] = "3600"
    server.on(f"GET {ONE}", limited)
    with pytest.raises(ApiError) as caught:
        client.runs.get(RUN)
    assert caught.value.retry_after_s == 3600
    assert len(server.seen) == 1


# -- errors ----------------------------------------------------------------------------------------


def test_a_problem_becomes_a_typed_error(server, client):
    findings = [{"field": "agent", "message": "agent is required"}]
    server.on(f"POST {RUNS}", problem(422, "INVALID", "bad", field="agent", errors=findings))
    with pytest.raises(ApiError) as caught:
        client.runs.create("a", "hi")
    error = caught.value
    assert (error.code, error.status, error.request_id) == ("INVALID", 422, "req_1")
    assert (error.field, error.message, error.errors) == ("agent", "bad", findings)


def test_what_is_no_harness_api_is_named_so(server, client):
    server.on(f"GET {ONE}", Answer(raw=b"<html>hello</html>"))
    with pytest.raises(BadAnswer, match="HARNESS_API_URL"):
        client.runs.get(RUN)
    server.on("POST /v1/sessions", Answer(500, raw=b"<html>oops</html>"))
    with pytest.raises(ApiError, match="without a problem document") as caught:
        client.sessions.create()
    assert caught.value.code == "HTTP_500"


def test_nobody_listens():
    expected = pytest.raises(Unreachable, match=r"127\.0\.0\.1:9.*harness dev")
    with Client("http://127.0.0.1:9", "k", retries=0) as client, expected:
        client.runs.get(RUN)


@pytest.mark.parametrize("bad", ["", "x", "../api-keys", "sess_" + "1" * 32])
def test_a_mistyped_id_never_becomes_another_path(server, client, bad):
    with pytest.raises(Invalid):
        client.runs.get(bad)
    with pytest.raises(Invalid):
        client.agents.get("../tenant")
    assert server.seen == []


# -- lists and waiting -----------------------------------------------------------------------------


def test_a_list_goes_on_page_after_page_and_stops_at_the_limit(server, client):
    server.on(f"GET {RUNS}", page(run_view(), run_view(), cursor="next"), page(run_view()))
    found = list(client.runs.list(status=["queued", "running"], tags={"a": "b:c"}, limit=3))
    assert len(found) == 3
    first, second = (s.query for s in server.seen)
    assert first == {"status": ["queued", "running"], "tag": ["a:b:c"], "limit": ["3"]}
    assert (second["cursor"], second["limit"]) == (["next"], ["1"])


def test_a_list_asks_only_for_what_is_taken(server, client):
    server.on(f"GET {RUNS}", page(run_view(), cursor="next"))
    next(iter(client.runs.list()))
    assert len(server.seen) == 1


def test_events_come_page_after_page(server, client):
    pages = [page(*(event(n, "x") for n in range(1, 201))), page(event(201, "x"))]
    server.on(f"GET {ONE}/events", *pages)
    assert [e.seq for e in client.runs.events(RUN)] == list(range(1, 202))
    assert [s.query["after"] for s in server.seen] == [["0"], ["200"]]


def test_a_tree_is_read_to_its_end_and_a_turn_over_two_pages_is_one(server, client):
    def tree(cursor, *turns):
        shown = [{"turn": n, "steps": [{"step": s} for s in steps]} for n, steps in turns]
        body = {"session": SESSION, "run": RUN, "turns": shown, "next_cursor": cursor}
        return Answer(body=body)

    pages = [tree("2.1", (1, [1, 2])), tree("5.2", (1, [3]), (2, [4, 5])), tree(None, (3, [6]))]
    server.on(f"GET {ONE}/tree", *pages)
    found = client.runs.tree(RUN)
    assert [(t["turn"], [s["step"] for s in t["steps"]]) for t in found.turns] == [
        (1, [1, 2, 3]),
        (2, [4, 5]),
        (3, [6]),
    ]
    assert [s.query.get("cursor") for s in server.seen] == [None, ["2.1"], ["5.2"]]


@pytest.mark.parametrize("last", ["succeeded", "failed", "waiting_approval"])
def test_wait_ends_when_nothing_more_happens_by_itself(server, client, last):
    server.on(f"GET {ONE}", Answer(body=run_view("running")), Answer(body=run_view(last)))
    assert client.runs.wait(RUN).status == last
    assert server.seen[0].query == {"wait": ["30.0"]}


def test_wait_has_an_end(server, client):
    server.on(f"GET {ONE}", Answer(body=run_view("running")))
    with pytest.raises(TimeoutError, match="still running"):
        client.runs.wait(RUN, timeout_s=0)


# -- streams ---------------------------------------------------------------------------------------

DELTA = {"type": "answer.delta", "step": 1, "text": "par\u2028tial", "durable": False}


def _broken_stream(server: FakeServer) -> None:
    """Two connections that break (one in the middle of an event), one that repeats, one whole."""
    server.on(
        f"GET {ONE}/stream",
        stream(event(1, "a"), event(2, "b"), DELTA, 'id: 3\nevent: c\ndata: {"seq"', cut=True),
        CUT,
        BUSY,
        stream(event(2, "b"), event(3, "c")),
        stream(": ping\n\n", event(4, "d"), END),
    )


def _check(server: FakeServer, items: list[Event | Live]) -> None:
    assert [i.seq for i in items if isinstance(i, Event)] == [1, 2, 3, 4]
    assert [i.text for i in items if isinstance(i, Live)] == ["par\u2028tial"]
    asked = [s.headers.get("last-event-id") for s in server.seen]
    assert asked == [None, "2", "2", "2", "3"]


def test_a_cut_stream_goes_on_without_gap_or_repeat(server, client):
    _broken_stream(server)
    _check(server, list(client.runs.stream(RUN)))


async def test_a_cut_stream_goes_on_without_gap_or_repeat_async(server):
    _broken_stream(server)
    async with AsyncClient(server.url, "k") as client:
        _check(server, [item async for item in client.runs.stream(RUN)])


def test_a_refused_stream_is_not_asked_for_again(server, client):
    server.on(f"GET {ONE}/stream", problem(404, "NOT_FOUND", "no run"))
    with pytest.raises(ApiError, match="no run"):
        list(client.runs.stream(RUN))
    assert len(server.seen) == 1


class DeadWire:
    """Reaches nobody; counts the pauses."""

    blocking = True

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def send(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    def open(self, request: httpx.Request):
        raise httpx.ConnectError("refused")

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def close(self) -> None:
        pass


def test_a_stream_that_brings_nothing_new_is_given_up():
    wire = DeadWire()
    runs: Runs[Blocking] = Runs(Http(wire, Target("http://x", "k"), timeout_s=1, retries=2))
    with pytest.raises(Unreachable):
        list(runs.stream(RUN))
    assert len(wire.slept) == 8
    assert 5 < sum(wire.slept) < 60


# -- the other nouns -------------------------------------------------------------------------------


def test_the_other_nouns_use_their_routes(server, client):
    at = "2026-01-31T12:00:00Z"
    agent = {"id": "g", "name": "a", "version": 1, "spec": {}, "digest": "d", "created_at": at}
    session = {"id": SESSION, "status": "idle", "created_at": at}
    key = {"id": KEY, "name": "k", "role": "viewer", "created_at": at}
    server.on("POST /v1/agents", Answer(201, agent))
    server.on("GET /v1/agents/a/versions/2", Answer(body=agent))
    server.on(f"POST /v1/sessions/{SESSION}/close", Answer(body=session))
    server.on("POST /v1/api-keys", Answer(201, {**key, "secret": "hk_s"}))
    server.on(f"DELETE /v1/api-keys/{KEY}", Answer(204))
    server.on(f"GET /v1/artifacts/{ARTIFACT}/content", Answer(raw=b"\x00\xff"))
    server.on("PATCH /v1/tenant/limits", Answer(body={"id": "t", "name": "n"}))
    server.on("GET /v1/workers", page())
    assert client.agents.apply("a", {"model": "m"}).version == 1
    assert client.agents.get("a", 2).name == "a"
    assert client.sessions.close(SESSION).status == "idle"
    made = client.keys.create("k", "viewer")
    assert (made.secret, "hk_s" in repr(made)) == ("hk_s", False)
    client.keys.revoke(KEY)
    assert client.artifacts.content(ARTIFACT) == b"\x00\xff"
    assert client.tenant.set_limits(max_running=3).name == "n"
    assert list(client.workers.list()) == []


# -- which server ----------------------------------------------------------------------------------


def _dev(folder: Path) -> dict[str, str]:
    found = {"pid": os.getpid(), "api_url": "http://127.0.0.1:1", "admin_key_file": "key"}
    found["admin_key_file"] = str(folder / "admin.key")
    (folder / "admin.key").write_text("hk_dev\n")
    (folder / "dev.json").write_text(json.dumps(found))
    return {"HARNESS_DATA_DIR": str(folder)}


def test_arguments_win_over_the_environment_and_that_over_harness_dev(tmp_path):
    dev = _dev(tmp_path)
    env = {**dev, "HARNESS_API_URL": "http://env:1/", "HARNESS_API_KEY": "hk_env"}
    assert find_target("https://arg", "hk_arg", env) == Target("https://arg", "hk_arg")
    assert find_target(env=env) == Target("http://env:1", "hk_env")
    assert find_target(env=dev) == Target("http://127.0.0.1:1", "hk_dev")


def test_the_key_of_harness_dev_goes_to_no_other_server(tmp_path):
    assert find_target("http://elsewhere", env=_dev(tmp_path)).api_key is None


@pytest.mark.parametrize(("url", "code"), [(None, "NO_SERVER"), ("localhost:80", "BAD_URL")])
def test_no_server_and_no_url(tmp_path, url, code):
    with pytest.raises(Invalid) as caught:
        find_target(url, env={"HARNESS_DATA_DIR": str(tmp_path)})
    assert caught.value.error_code == code


def test_a_key_is_needed_and_never_shown(server, monkeypatch):
    monkeypatch.delenv("HARNESS_API_KEY", raising=False)
    with Client(server.url) as client, pytest.raises(Invalid, match="HARNESS_API_KEY"):
        client.tenant.get()
    assert "hk_x" not in repr(Target("http://x", "hk_x"))
