"""The MCP face, spoken to by the official client: over HTTP at the API, and over stdio."""

from __future__ import annotations

import asyncio
import sys

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from harness_common.contracts.agent import AgentSpec
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor

ASK = {"name": "ask_user", "input": {"question": "Which?", "choices": ["a", "b"]}}


@pytest.fixture
async def agent(db, tenant):
    spec = AgentSpec(
        description="Asks and says.",
        model="scripted/x",
        model_options={"script": [{"tools": [ASK]}, {"text": "You said {{last_result}}."}]},
        tools=("ask_user",),
    )
    await put_agent(db, tenant.id, "asker", spec, Actor("test"))
    slow = AgentSpec(
        model="scripted/x", model_options={"script": [{"text": "late", "delay_s": 60}]}
    )
    await put_agent(db, tenant.id, "slow", slow, Actor("test"))


@pytest.fixture(params=["http", "http-legacy", "stdio"])
def transport(request, url, tenant, worker, agent):
    """Give what the client speaks over."""
    key = tenant.keys["admin"]
    if request.param == "stdio":
        program = StdioServerParameters(
            command=sys.executable,
            args=["-c", "from harness_api.cli.main import main; main()", "mcp", "serve"],
            env={"HARNESS_API_URL": url, "HARNESS_API_KEY": key},
        )
        return stdio_client(program), "auto"
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30)
    mode = "legacy" if request.param == "http-legacy" else "auto"
    return streamable_http_client(f"{url}/mcp", http_client=http), mode


async def call(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def test_submit_wait_answer(transport):
    over, mode = transport
    async with Client(over, mode=mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {
            "list_agents", "submit_run", "get_run", "wait_run", "answer_run", "cancel_run",
        }  # fmt: skip
        agents = (await call(client, "list_agents"))["result"]
        assert {a["name"]: a["description"] for a in agents}["asker"] == "Asks and says."
        run = await call(client, "submit_run", agent="asker@1", input="hi", idempotency_key="k")
        again = await call(client, "submit_run", agent="asker@1", input="hi", idempotency_key="k")
        assert again["run_id"] == run["run_id"]
        run = await call(client, "wait_run", run_id=run["run_id"], timeout_s=60)
        assert (run["status"], run["over"]) == ("waiting_input", False)
        assert run["questions"] == [{"call": "2.0", "question": "Which?", "choices": ["a", "b"]}]
        refused = await client.call_tool("answer_run", {"run_id": run["run_id"], "text": "c"})
        assert refused.is_error
        assert "choices" in str(refused.content[0])
        await call(client, "answer_run", run_id=run["run_id"], text="b")
        run = await call(client, "wait_run", run_id=run["run_id"], timeout_s=60)
        assert (run["status"], run["output"]) == ("succeeded", "You said b.")
        assert (await call(client, "get_run", run_id=run["run_id"])) == run


async def test_a_wait_is_bounded_and_tells_how_far_it_is(transport):
    over, mode = transport
    told = []

    async def progress(done, total, message):
        told.append((done, total, message))

    async with Client(over, mode=mode) as client:
        run = await call(client, "submit_run", agent="slow", input="hi")
        shown = await client.call_tool(
            "wait_run", {"run_id": run["run_id"], "timeout_s": 3}, progress_callback=progress
        )
        assert shown.structured_content["status"] == "running"
        assert told
        assert told[0][1:] == (3.0, "step 0")
        run = await call(client, "cancel_run", run_id=run["run_id"], reason="enough")
        assert run["status"] in {"cancelling", "cancelled"}


async def test_keys(url, tenant, worker, agent):
    async with httpx2.AsyncClient() as http:
        for headers in ({}, {"Authorization": "Bearer hk_wrong"}):
            answer = await http.post(f"{url}/mcp", json={}, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    viewer = httpx2.AsyncClient(headers=tenant.headers("viewer"), timeout=30)
    async with Client(streamable_http_client(f"{url}/mcp", http_client=viewer)) as client:
        assert (await call(client, "list_agents"))["result"]
        refused = await client.call_tool("submit_run", {"agent": "asker", "input": "x"})
        assert refused.is_error
        assert "runs:write" in str(refused.content[0])


async def test_another_tenant_sees_nothing(url, tenant, other_tenant, worker, agent):
    def over(who):
        http = httpx2.AsyncClient(headers=who.headers("admin"), timeout=30)
        return streamable_http_client(f"{url}/mcp", http_client=http)

    async with Client(over(tenant)) as mine, Client(over(other_tenant)) as theirs:
        run = await call(mine, "submit_run", agent="asker", input="x")
        both = await asyncio.gather(
            mine.call_tool("get_run", {"run_id": run["run_id"]}),
            theirs.call_tool("get_run", {"run_id": run["run_id"]}),
        )
        assert [r.is_error for r in both] == [False, True]
