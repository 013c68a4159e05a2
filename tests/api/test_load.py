"""Backpressure: a slow database or slow readers cost a bounded amount, and nobody waits to be
refused.
"""

from __future__ import annotations

import asyncio
import time

import httpx
import psycopg
import pytest
from asgi_lifespan import LifespanManager
from starlette.types import Message, Receive, Scope, Send

from harness_api.app import create_app
from harness_api.middleware import BodyGuard
from harness_common.settings import ApiSettings


@pytest.fixture
async def small(config, db, redis, tenant):
    """Make an API that takes three requests and two streams at once."""
    api = config.api.model_copy(update={"max_requests": 3, "max_streams": 2})
    app = create_app(config.model_copy(update={"api": ApiSettings(**api.model_dump())}))
    async with LifespanManager(app):
        yield httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://api",
            headers=tenant.headers("admin"),
            timeout=30,
        )


@pytest.fixture
async def shared_out(config, db, redis, tenant):
    """Make an API that takes four streams at once, two of one key."""
    api = config.api.model_copy(update={"max_streams": 4, "max_streams_per_key": 2})
    app = create_app(config.model_copy(update={"api": ApiSettings(**api.model_dump())}))
    async with LifespanManager(app):
        yield httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://api", timeout=30
        )


@pytest.fixture
async def slow_database(database_url, tenant):
    """Hold the tenant's slots, so that every start of a run waits; gives what lets them go on."""
    async with await psycopg.AsyncConnection.connect(database_url) as conn:
        await conn.execute(
            "SELECT 1 FROM tenant_slots WHERE tenant_id = %s FOR UPDATE", (tenant.id,)
        )
        yield conn.rollback


async def under_way(app_client, n):
    tasks = [
        asyncio.create_task(app_client.post("/v1/runs", json={"agent": "a", "input": "x"}))
        for _ in range(n)
    ]
    await asyncio.sleep(0.3)
    return tasks


async def test_what_cannot_be_served_soon_is_refused_at_once_and_nothing_accepted_is_lost(
    small, slow_database
):
    tasks = await under_way(small, 3)
    begun = time.monotonic()
    refused = await small.post("/v1/runs", json={"agent": "a", "input": "x"})
    assert time.monotonic() - begun < 1
    assert (refused.status_code, refused.json()["code"]) == (503, "OVERLOADED")
    assert 1 <= int(refused.headers["Retry-After"]) <= 3
    assert refused.json()["limit"] == 3
    assert (await small.get("/healthz")).status_code == 200
    metrics = (await small.get("/metrics")).text
    assert 'harness_api_requests_shed_total{kind="requests"} 1.0' in metrics
    await slow_database()
    assert [t.status_code for t in await asyncio.gather(*tasks)] == [202] * 3
    again = await small.post("/v1/runs", json={"agent": "a", "input": "x"})
    assert again.status_code == 202, "room is given back"


async def test_streams_do_not_use_up_the_room_of_requests(small):
    run = (await small.post("/v1/runs", json={"agent": "a", "input": "x"})).json()
    polls = [
        asyncio.create_task(small.get(f"/v1/runs/{run['id']}", params={"wait": 2}))
        for _ in range(2)
    ]
    await asyncio.sleep(0.3)
    third = await small.get(f"/v1/runs/{run['id']}", params={"wait": 2})
    assert (third.status_code, third.json()["limit"]) == (503, 2)
    assert (await small.get("/v1/runs")).status_code == 200
    assert [p.status_code for p in await asyncio.gather(*polls)] == [200, 200]


async def test_a_stream_is_counted_as_one_whatever_its_client_accepts(small):
    run = (await small.post("/v1/runs", json={"agent": "a", "input": "x"})).json()
    path = f"/v1/runs/{run['id']}/stream"
    open_ = [asyncio.create_task(small.get(path)) for _ in range(2)]
    await asyncio.sleep(0.3)
    third = await small.get(path)
    assert (third.status_code, third.json()["limit"]) == (503, 2)
    asked = await small.get(f"/v1/responses/resp_{run['id'][4:]}", params={"stream": "1"})
    assert (asked.status_code, asked.json()["limit"]) == (503, 2)
    assert (await small.get("/v1/runs")).status_code == 200
    for task in open_:
        task.cancel()


async def test_one_key_does_not_take_the_streams_of_all(shared_out, tenant):
    mine, other = tenant.headers("admin"), tenant.headers("viewer")
    started = await shared_out.post("/v1/runs", json={"agent": "a", "input": "x"}, headers=mine)
    path = f"/v1/runs/{started.json()['id']}"
    open_ = [
        asyncio.create_task(shared_out.get(path, params={"wait": 2}, headers=mine))
        for _ in range(2)
    ]
    await asyncio.sleep(0.3)
    third = await shared_out.get(f"{path}/stream", headers=mine)
    assert (third.status_code, third.json()["code"]) == (429, "TOO_MANY_STREAMS")
    assert third.json()["limit"] == 2
    assert 1 <= int(third.headers["Retry-After"]) <= 3
    assert (await shared_out.get("/v1/runs", headers=mine)).status_code == 200
    theirs = await shared_out.get(path, params={"wait": 0.1}, headers=other)
    assert theirs.status_code == 200
    metrics = (await shared_out.get("/metrics")).text
    assert 'harness_api_requests_shed_total{kind="streams_of_key"} 1.0' in metrics
    assert [t.status_code for t in await asyncio.gather(*open_)] == [200, 200]
    again = await shared_out.get(path, params={"wait": 0.1}, headers=mine)
    assert again.status_code == 200, "room is given back"


async def test_a_body_that_does_not_come_gives_its_place_back():
    """Nobody has asked for a key by then: a few hundred such requests were all that is served."""
    sent: list[Message] = []

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def keep(message: Message) -> None:
        sent.append(message)

    async def unreached(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    scope = {
        "type": "http", "method": "POST", "path": "/v1/runs", "query_string": b"",
        "headers": [(b"content-length", b"10")], "state": {"request_id": "r"},
    }  # fmt: skip
    async with asyncio.timeout(5):
        await BodyGuard(unreached, max_body_bytes=100, body_s=0.05)(scope, never, keep)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
