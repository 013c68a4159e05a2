"""What an open page of a run is told."""

from __future__ import annotations

import asyncio

import httpx
import orjson
from fastapi import FastAPI

from harness_api.app import stop_streams
from harness_api.console.live import follow
from harness_api.deps import Services
from harness_common.coord.channel import Channel
from harness_common.core.ids import encode
from harness_common.store.audit import Actor
from harness_common.store.db import Database
from harness_common.store.keys import revoke_key
from tests.console.conftest import LogIn
from tests.fakes.tenant import Tenant
from tests.store.play import Play, say


async def test_changes_tokens_and_the_end_are_told(
    app: FastAPI, services: Services, play: Play, tenant: Tenant
):
    run_id = await play.start()
    stream = follow(services, tenant.id, run_id, tenant.rows["viewer"]["public_id"])
    assert await anext(stream) == b"retry: 2000\n\n"
    first = await anext(stream)
    assert b"event: changed" in first
    assert b'"running"' in first

    channel = Channel(services.redis, services.config.redis.prefix)
    await channel.live(run_id, {"type": "answer.delta", "step": 1, "text": "<b>hi", "at": 0})
    frame = await asyncio.wait_for(anext(stream), 10)
    name, data = frame.decode().strip().split("\n")
    assert name == "event: delta"
    assert orjson.loads(data.removeprefix("data: ")) == {"step": 1, "text": "<b>hi", "at": 0}

    await play.step(run_id, say("done"))
    await channel.live(run_id, {"type": "committed", "status": "succeeded"})
    rest = [frame async for frame in stream]
    assert b"event: end" in rest[-1]
    assert any(b"event: changed" in frame and b"succeeded" in frame for frame in rest)


async def test_a_stream_ends_when_the_process_stops(
    app: FastAPI, services: Services, play: Play, tenant: Tenant
):
    key = tenant.rows["viewer"]["public_id"]
    stream = follow(services, tenant.id, await play.start(), key)
    await anext(stream)
    await anext(stream)
    stop_streams(app)
    assert [frame async for frame in stream if b"changed" not in frame] == []


async def test_a_stream_ends_with_its_key(services: Services, play: Play, tenant: Tenant):
    run_id, row = await play.start(), tenant.rows["viewer"]
    stream = follow(services, tenant.id, run_id, row["public_id"])
    await anext(stream)
    await anext(stream)
    await revoke_key(play.db, tenant.id, row["id"], Actor("test"))
    services.keyring.forget(row["public_id"])
    channel = Channel(services.redis, services.config.redis.prefix)
    await channel.live(run_id, {"type": "answer.delta", "step": 1, "text": "secret", "at": 0})
    async with asyncio.timeout(10):
        assert [frame async for frame in stream if b"delta" in frame] == []


async def test_a_stream_needs_a_session_and_an_own_run(
    login_as: LogIn, app: FastAPI, play: Play, other_tenant: Tenant, db: Database
):
    path = f"/console/runs/{encode('run', await play.start())}/live"
    headers = {"Accept": "text/event-stream"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api"
    ) as nobody:
        assert (await nobody.get(path, headers=headers)).status_code == 401
    stranger = await login_as(key=other_tenant.keys["admin"])
    assert (await stranger.get(path, headers=headers)).status_code == 404
