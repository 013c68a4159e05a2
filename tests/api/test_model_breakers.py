"""Which models fail now: over HTTP, in the client and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness_api.client import AsyncClient
from harness_common.core.fallback import model_key
from harness_worker.tools.breakers import Breakers
from tests.api.test_tool_breakers import break_tool

MODEL = "openai/meta/llama-3:8b"
RESET = "/v1/models/breakers/reset"


async def break_model(db, tenant, name=MODEL, **how):
    await break_tool(db, tenant, model_key(name), **how)


async def test_models_and_tools_are_listed_apart(api, db, tenant, other_tenant):
    await break_tool(db, tenant)
    await break_model(db, tenant)
    await break_model(db, tenant, "anthropic/claude-opus-5", open_s=-1, probing=True)
    await break_model(db, other_tenant, "anthropic/claude-sonnet-5")
    data = (await api.get("/v1/models/breakers")).json()["data"]
    assert [(b["model"], b["state"]) for b in data] == [
        ("anthropic/claude-opus-5", "half_open"), (MODEL, "open"),
    ]  # fmt: skip
    assert (data[1]["failures"], data[1]["reason"]) == (5, "TIMEOUT: no result")
    tools = (await api.get("/v1/tools/breakers")).json()["data"]
    assert [b["tool"] for b in tools] == ["search"]


async def test_a_reset_is_heard_by_workers_and_kept_in_the_audit(api, services, db, tenant):
    await break_model(db, tenant)
    breakers = Breakers(db, None, lambda: datetime.now(UTC), services.config.tool)
    await breakers.look()
    assert breakers.open
    async with services.channel.worker_signals(tenant.id) as signals:
        answer = await api.post(RESET, json={"model": MODEL})
        assert (answer.status_code, answer.json()["state"]) == (200, "closed")
        async for signal in signals:
            breakers.heard(signal["breaker"])
            break
    assert not breakers.open
    (entry,) = [e for e in (await api.get("/v1/audit")).json()["data"] if e["target"] == MODEL]
    assert (entry["action"], entry["detail"]) == ("model.breaker_reset", {"was": "open"})
    again = await api.post(RESET, json={"model": MODEL})
    assert again.status_code == 404
    assert "harness models breakers" in again.json()["detail"]


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 200)])
async def test_who_may_reset(api, db, tenant, role, status):
    await break_model(db, tenant)
    headers = tenant.headers(role)
    assert (await api.get("/v1/models/breakers", headers=headers)).status_code == 200
    answer = await api.post(RESET, json={"model": MODEL}, headers=headers)
    assert answer.status_code == status


async def test_a_tenant_resets_only_its_own_and_names_a_model(api, db, tenant, other_tenant):
    await break_model(db, tenant)
    theirs = other_tenant.headers("admin")
    assert (await api.post(RESET, json={"model": MODEL}, headers=theirs)).status_code == 404
    odd = await api.post(RESET, json={"model": "gpt"})
    assert odd.status_code == 422


async def test_the_client_and_the_command_show_and_reset(url, db, tenant):
    await break_model(db, tenant)
    key = tenant.keys["admin"]
    async with AsyncClient(url, key) as client:
        (found,) = [b async for b in client.models.breakers()]
        assert (found.model, found.state) == (MODEL, "open")
    environment = {**os.environ, "HARNESS_API_URL": url, "HARNESS_API_KEY": key}

    async def run(*args):
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "harness", "models", *args,
            env=environment, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    code, shown = await run("breakers", "--json")
    assert (code, json.loads(shown)["data"][0]["model"]) == (0, MODEL)
    assert "TIMEOUT: no result" in (await run("breakers"))[1]
    assert await run("reset-breaker", MODEL) == (0, f"{MODEL} is asked again\n")
    assert (await run("reset-breaker", MODEL))[0] == 1
