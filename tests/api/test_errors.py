"""What is refused, and how: problem details that name the field and say what to do; never a bare
500.
"""

from __future__ import annotations

import json
import time

import httpx
import psycopg
import pytest
from asgi_lifespan import LifespanManager
from structlog.testing import capture_logs

from harness_api.app import create_app
from harness_api.errors import status_of
from harness_api.middleware import MAX_DEPTH, too_deep
from harness_common.core import errors as core_errors
from harness_common.core.errors import Denied, HarnessError, Limited, NotFound, Unauthenticated
from harness_common.store.connection import DatabaseUnavailable
from tests.fakes.tenant import Tenant

RUN = {"agent": "a", "input": "hi"}
JSON = {"Content-Type": "application/json"}


def is_problem(answer: httpx.Response, status: int, code: str, field: str | None = None) -> bool:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["detail"]
    assert body["request_id"] == answer.headers["request-id"]
    if field is not None:
        assert body["field"] == field, body
    return True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "agent"),
        (RUN | {"bogus": 1}, "bogus"),
        (RUN | {"input": 3}, "input"),
        (RUN | {"input": ""}, "input"),
        (RUN | {"input": "  "}, "input"),
        (RUN | {"agent": "No Such Name"}, "agent"),
        (RUN | {"priority": "6"}, "priority"),
        (RUN | {"priority": 10}, "priority"),
        (RUN | {"priority": True}, "priority"),
        (RUN | {"max_turns": 1.5}, "max_turns"),
        (RUN | {"max_tokens": 2**70}, "max_tokens"),
        (RUN | {"agent_version": 2**31}, "agent_version"),
        (RUN | {"timeout_s": 0}, "timeout_s"),
        (RUN | {"tags": {"a": 1}}, "tags.a"),
        (RUN | {"tags": {str(n): "" for n in range(33)}}, "tags"),
        (RUN | {"session_id": "sess_1"}, "session_id"),
    ],
)
async def test_a_wrong_field_is_named(api, body, field):
    answer = await api.post("/v1/runs", json=body)
    assert is_problem(answer, 422, "INVALID", field)
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "spec",
    [
        {"bogus": 1},
        {"tools": "abc"},
        {"retry": {"max_attempts": 0}},
        {"temperature": "1"},
        {"max_turns": "3"},
        {"queue": "other"},
    ],
)
async def test_a_wrong_agent_is_named_down_to_its_field(api, spec):
    answer = await api.post("/v1/agents", json={"name": "b", "spec": spec})
    assert is_problem(answer, 422, "INVALID")
    assert answer.json()["field"].startswith(f"spec.{next(iter(spec))}")


@pytest.mark.parametrize(
    "text", ["", "{", "nope", '{"agent": NaN}', '{"agent":"a","input":"\\ud800"}', "[1]", "null"]
)
async def test_what_is_no_json_object_is_refused(api, text):
    answer = await api.post("/v1/runs", content=text, headers=JSON)
    assert is_problem(answer, 422, "INVALID")


async def test_nul_is_refused_wherever_it_is(api):
    for body in (RUN | {"input": "a\0b"}, RUN | {"tags": {"a\0": "b"}}):
        assert is_problem(await api.post("/v1/runs", json=body), 422, "INVALID", "body")
    escaped = r'{"agent":"a","input":"a\\u0000b"}'  # a backslash, not a NUL
    assert (await api.post("/v1/runs", content=escaped, headers=JSON)).status_code == 202
    for url in ("/v1/runs?agent=%00", "/v1/agents/%00", "/v1/runs?tag=a:%00"):
        assert is_problem(await api.get(url), 422, "INVALID", "url")
    assert (await api.post("/v1/runs", content=b'{"agent":"a\0"}', headers=JSON)).status_code == 422


async def test_a_large_body_is_refused_before_it_is_read(api, config):
    limit = config.api.max_body_bytes
    answer = await api.post("/v1/runs", content=b" " * (limit + 1), headers=JSON)
    assert is_problem(answer, 413, "BODY_TOO_LARGE", "body")
    assert answer.json()["limit"] == limit

    async def endless():
        while True:
            yield b" " * 65536

    answer = await api.post("/v1/runs", content=endless(), headers=JSON)
    assert is_problem(answer, 413, "BODY_TOO_LARGE")


async def test_another_kind_of_body_is_refused(api):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": kind}
        answer = await api.post("/v1/runs", content=json.dumps(RUN), headers=headers)
        assert is_problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type")


async def test_a_deep_body_is_refused_before_it_is_parsed(api):
    deep = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
    answer = await api.post("/v1/sessions", content=f'{{"metadata":{deep}}}', headers=JSON)
    assert is_problem(answer, 422, "INVALID", "body")


def test_depth_is_counted_outside_strings_and_in_linear_time():
    assert not too_deep(b'"' + b"[" * 1000 + b'"', 10)
    assert not too_deep(b"[" + b",".join([b'{"a":"\\"]"}'] * 1000) + b"]", 2)
    assert too_deep(b"[[[", 2)
    started = time.perf_counter()
    for evil in (b'"\\' * 500_000, b'"\\"' * 300_000, b"[]" * 500_000, b'["' * 500_000):
        too_deep(evil, 64)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("cursor", ["x", "!", "AAAA", "a" * 201, "é"])
@pytest.mark.parametrize("path", ["/v1/runs", "/v1/agents/a/versions", "/v1/audit"])
async def test_a_foreign_cursor_is_refused(api, path, cursor):
    answer = await api.get(path, params={"cursor": cursor})
    assert is_problem(answer, 422, "INVALID", "cursor")


async def test_unknown_routes_methods_and_ids(api):
    assert is_problem(await api.get("/v1/nothing"), 404, "NO_SUCH_ROUTE")
    answer = await api.put("/v1/runs", json={})
    assert is_problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, POST"
    assert is_problem(await api.get("/v1/runs/7"), 422, "INVALID", "run_id")
    assert is_problem(await api.get("/v1/runs?bogus=1"), 422, "INVALID", "bogus")
    assert is_problem(await api.get("/v1/runs?limit=0"), 422, "INVALID", "limit")
    assert is_problem(await api.get("/v1/runs?created_after=monday"), 422, "INVALID")


async def test_every_answer_carries_a_request_id(api):
    for path in ("/healthz", "/readyz", "/v1/runs", "/v1/nothing", "/metrics", "/openapi.json"):
        assert (await api.get(path)).headers["request-id"].startswith("req_")
    answer = await api.get("/v1/runs", headers={"Request-Id": "mine-1"})
    assert answer.headers["request-id"] == "mine-1"
    answer = await api.get("/v1/runs", headers={"Request-Id": "not mine"})
    assert answer.headers["request-id"].startswith("req_")


async def test_audit_rows_name_the_request(api):
    headers = {"Request-Id": "order-66"}
    run = (await api.post("/v1/runs", json=RUN, headers=headers)).json()
    row = (await api.get("/v1/audit")).json()["data"][0]
    assert (row["request_id"], row["target"]) == ("order-66", run["id"])


async def test_an_unforeseen_exception_is_a_problem_too(app, api):
    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("the secret cause")

    answer = await api.get("/boom")
    assert is_problem(answer, 500, "INTERNAL")
    assert "secret" not in answer.text


async def test_without_postgres_it_answers_503_and_lives(config, tenant: Tenant):
    away = config.model_copy(update={"database_url": "postgresql://x@127.0.0.1:1/x"})
    app = create_app(
        away.model_copy(update={"database": away.database.model_copy(update={"timeout_s": 0.3})})
    )
    async with (
        LifespanManager(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        for path in ("/readyz", "/v1/runs"):
            answer = await client.get(path, headers=tenant.headers("admin"))
            assert is_problem(answer, 503, "DATABASE_UNAVAILABLE")
            assert int(answer.headers["retry-after"]) >= 1
            assert "127.0.0.1" not in answer.text


def test_every_named_failure_has_a_status():
    for value in vars(core_errors).values():
        if (
            isinstance(value, type)
            and issubclass(value, HarnessError)
            and value is not HarnessError
        ):
            assert 400 <= status_of(value("x")) < 600
            assert status_of(value("x")) != 500
    assert status_of(NotFound("x")) == 404
    assert status_of(Unauthenticated("x")) == 401
    assert status_of(Denied("x")) == 403
    assert status_of(Limited("x")) == 429
    assert status_of(DatabaseUnavailable("x")) == 503


async def test_a_limit_says_when_to_come_back(app, api):
    @app.get("/limited")
    async def limited() -> None:
        raise Limited("slow down", retry_after_s=2.1)

    answer = await api.get("/limited")
    assert is_problem(answer, 429, "LIMITED")
    assert answer.headers["retry-after"] == "3"


async def test_what_the_database_refuses_is_not_quoted_in_the_log(app, api):
    @app.get("/refused")
    async def refused() -> None:
        raise psycopg.errors.UntranslatableCharacter('JSON data, line 1: "a secret question')

    with capture_logs() as logs:
        answer = await api.get("/refused")
    assert is_problem(answer, 422, "INVALID")
    (line,) = [line for line in logs if line["event"] == "request.value_refused"]
    assert line["error"] == "UntranslatableCharacter"
    assert "secret" not in str(logs)


async def test_metrics_have_bounded_labels(api):
    run = (await api.post("/v1/runs", json=RUN)).json()
    await api.get(f"/v1/runs/{run['id']}")
    await api.get("/v1/some-path")
    text = (await api.get("/metrics")).text
    assert 'route="/v1/runs/{run_id}"' in text
    assert "run_" + "0" not in text
    assert run["id"] not in text
    assert "some-path" not in text
    assert 'harness_api_runs_accepted_total{admitted="yes"} 1.0' in text


async def test_openapi_documents_errors_and_the_key(api):
    document = (await api.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    ids = []
    for path, item in document["paths"].items():
        for operation in item.values():
            ids.append(operation["operationId"])
            assert operation["tags"]
            if path.startswith("/v1/"):
                assert {"ApiKey": []} in operation["security"]
                for status in ("401", "403", "422", "503"):
                    content = operation["responses"][status]["content"]
                    # What is refused before a route is reached has our form there too.
                    own = path.startswith("/v1/responses") and status in {"401", "403", "503"}
                    assert next(iter(content)) == (
                        "application/json" if own else "application/problem+json"
                    )
    assert len(ids) == len(set(ids))
    assert (await api.get("/docs")).status_code == 200
