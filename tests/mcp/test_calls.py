"""Calls of tools of MCP servers, over both families of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import httpx
import mcp_types as types
import psutil
import pytest

from harness_common.commands.control import cancel_run
from harness_common.contracts.tool import EffectClass
from harness_common.core.run import Status
from harness_common.store import mcp_servers as store
from harness_worker.advance import answer
from harness_worker.heartbeat import request_cancel
from harness_worker.mcp.connection import Call, Connection
from harness_worker.mcp.faults import ConnectionLost, SessionGone
from harness_worker.mcp.http import Bridge, http_transport, protocol_client
from tests.mcp.bench import ME, asking

FAMILIES = pytest.mark.parametrize("more", [(), ("--old",)], ids=["2026", "2025"])


def launchers() -> list[psutil.Process]:
    """List the servers that this process has started and that live."""

    def is_launcher(child: psutil.Process) -> bool:
        try:
            return any("launcher.py" in part for part in child.cmdline())
        except (psutil.ZombieProcess, psutil.NoSuchProcess):
            return False

    return [child for child in psutil.Process().children() if is_launcher(child)]


async def until(condition) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process has no signal for it
            await asyncio.sleep(0.02)


@FAMILIES
async def test_a_call_goes_out_and_back(bench, more):
    await bench.declare("s", asking(bench.state, *more), effects={"look": "read"})
    result = await bench.call(await bench.worker(), "s__look")
    assert result.content.startswith("seen by ")
    assert not result.is_error
    (pool,) = bench.pools
    (connection,) = pool._open.values()
    assert connection.client.protocol_version == ("2025-11-25" if more else "2026-07-28")


async def test_results_are_of_strangers_and_calls_are_writes_unless_declared(bench):
    await bench.declare("s", asking(bench.state), effects={"look": "read"})
    worker = await bench.worker()
    run_id = await bench.start(("s__look", {}), ("s__fail", {}))
    await bench.step(run_id, worker)
    look, fail = await bench.play.calls(run_id)
    assert (look["effect"], look["trust"]) == ("read", "untrusted")
    assert (fail["effect"], fail["trust"], fail["error_type"]) == (
        "write", "untrusted", "MCP_TOOL_ERROR",
    )  # fmt: skip
    assert "no luck" in fail["result"]
    assert (await bench.play.messages(run_id))[-1].trust == "untrusted"


async def test_names_and_schemas_that_cannot_be(bench):
    await bench.declare("s", asking(bench.state))
    worker = await bench.worker()
    names = await worker.mcp.expand(bench.tenant_id, ["s__*", "other"])
    assert "s__broken" not in names
    assert names[-1] == "other"
    (odd,) = [name for name in names if name.startswith("s__odd_name")]
    assert "called odd name!" in (await bench.call(worker, odd)).content
    broken = (await bench.tools("s"))["broken"]
    assert broken["state"] == "refused"
    assert "/properties/a" in broken["problem"]
    result = await bench.call(worker, "s__broken")
    assert result.error_type == "MCP_TOOL_REFUSED"


async def test_a_huge_result_is_kept_as_an_artifact_and_a_flood_ends_the_server(bench):
    await bench.declare("s", asking(bench.state), effects={"flood": "read"})
    worker = await bench.worker(max_result_bytes=300_000)
    result = await bench.call(worker, "s__flood", n=100_000)
    assert len(result.content) < 20_000
    assert "art_" in result.content
    result = await bench.call(worker, "s__flood", n=400_000)
    assert result.error_type == "TRANSIENT"
    assert (await bench.call(worker, "s__look")).content.startswith("seen by")


@FAMILIES
async def test_progress_and_cancel(bench, more):
    await bench.declare("s", asking(bench.state, *more), effects={"slow": "read"})
    worker = await bench.worker()
    run_id = await bench.start(("s__slow", {"s": 30}))
    step = asyncio.create_task(answer(worker, bench.tenant_id, run_id, 2))
    await until(lambda: "slow begins" in bench.effects())
    await asyncio.sleep(0.2)
    await cancel_run(bench.db, bench.tenant_id, run_id, by="me")
    request_cancel(worker, run_id)
    await step
    assert (await bench.play.read(run_id)).state.status is Status.CANCELLED
    await until(lambda: "slow cancelled" in bench.effects())
    events = [e["payload"] for e in await bench.play.events(run_id) if e["type"] == "tool.progress"]
    assert events[0]["message"] == "part 0"


async def test_a_server_killed_in_mid_call(bench):
    """A read is made again, a write is unknown; the next call finds a new server."""
    await bench.declare("s", asking(bench.state), effects={"look": "read", "slow": "read"})
    worker = await bench.worker()
    pid = int((await bench.call(worker, "s__look")).content.rsplit(" ", 1)[-1])
    run_id = await bench.start(("s__die", {}))
    assert await bench.step(run_id, worker) is Status.WAITING_APPROVAL
    (call,) = await bench.play.calls(run_id)
    assert call["status"] == "unknown"
    again = int((await bench.call(worker, "s__look")).content.rsplit(" ", 1)[-1])
    assert again != pid
    run_id = await bench.start(("s__slow", {"s": 1}))
    step = asyncio.create_task(answer(worker, bench.tenant_id, run_id, 2))
    await until(lambda: "slow begins" in bench.effects())
    os.kill(again, signal.SIGKILL)
    await step
    assert (await bench.results(run_id))[0].content == "done"
    assert bench.effects().count("slow begins") == 2


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"code": -32603, "message": "something broke"}, "unknown"),
        ({"code": -32001, "message": "Request timed out"}, "unknown"),
        ({"code": -32602, "message": "no such colour"}, "failed"),
    ],
)
async def test_a_write_that_a_server_failed_in_is_unknown(bench, arguments, status):
    """INV3: it had begun; a call that the server does not take has done nothing."""
    await bench.declare("s", asking(bench.state))
    run_id = await bench.start(("s__break", arguments))
    await bench.step(run_id, await bench.worker())
    (call,) = await bench.play.calls(run_id)
    assert (call["status"], call["effect"]) == (status, "write")


async def test_a_server_that_died_while_idle_makes_no_write_unknown(bench):
    await bench.declare("s", asking(bench.state), effects={"look": "read"})
    worker = await bench.worker()
    pid = int((await bench.call(worker, "s__look")).content.rsplit(" ", 1)[-1])
    (connection,) = bench.pools[0]._open.values()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not connection.is_open)
    assert (await bench.call(worker, "s__fail")).error_type == "MCP_TOOL_ERROR"


async def test_nothing_is_left_of_a_server(bench):
    """The whole tree goes, what has left its session too, also after a kill -9 of the launcher."""
    await bench.declare("s", asking(bench.state), effects={"look": "read"})
    worker = await bench.worker()
    child = int((await bench.call(worker, "s__spawn")).content)
    assert psutil.pid_exists(child)
    await bench.pools[0].aclose()
    await until(lambda: not _alive(child))
    await bench.call(worker, "s__look")
    (launcher,) = launchers()
    (server,) = launcher.children()
    launcher.kill()
    await until(lambda: not _alive(server.pid))


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_the_environment_of_a_server_is_its_own(bench, monkeypatch):
    monkeypatch.setenv("HARNESS_CANARY", "canary-7")
    target = asking(bench.state) | {"env": {"TOKEN": "secret://t"}}
    await bench.declare("s", target)
    found = (await bench.call(await bench.worker(), "s__env")).content
    assert "TOKEN=value-of-t" in found
    assert "canary-7" not in found
    home = next(line for line in found.splitlines() if line.startswith("HOME="))
    assert Path(home.removeprefix("HOME=")).is_relative_to(bench.folder)
    rows = await bench.db.fetch("mcp_servers_named", {"tenant_id": bench.tenant_id, "names": ["s"]})
    assert "value-of-t" not in str(rows)


async def test_a_command_that_the_operator_does_not_allow(bench):
    await bench.declare("s", asking(bench.state))
    worker = await bench.worker(commands=("uvx",))
    run_id = await bench.start(("s__look", {}))
    await bench.step(run_id, worker)
    assert "MCP_COMMAND_DENIED" in await bench.failure(run_id)
    assert not launchers()


async def test_the_number_of_connections_is_bounded_and_idle_ones_go(bench):
    for name in ("one", "two"):
        await bench.declare(name, asking(bench.state))
    worker = await bench.worker(max_connections=1)
    await bench.call(worker, "one__env")
    await bench.call(worker, "two__env")
    assert bench.pools[0].size == 1
    worker = await bench.worker(idle_s=0.2)
    await bench.call(worker, "one__env")
    await until(lambda: len(launchers()) == 1)  # that of the first worker


async def test_two_tenants_never_share_a_session(bench, db):
    from tests.mcp.bench import Bench
    from tests.store.play import Play, make_tenant

    other = Bench(db, Play(db, await make_tenant(db)), bench.folder)
    pids = []
    worker = await bench.worker()
    for one in (bench, other, bench):
        await one.declare("s", asking(bench.state), effects={"look": "read"})
        pids.append((await one.call(worker, "s__look")).content)
    assert pids[0] != pids[1]
    assert bench.pools[0].size == 2
    await store.remove_server(db, other.tenant_id, "s", ME)
    assert await worker.mcp.find(other.tenant_id, ["s__look"]) == []
    assert len(await worker.mcp.find(bench.tenant_id, ["s__look"])) == 1


async def test_a_closed_connection_says_that_nothing_was_sent(bench):
    """So a write that finds it closed is made over another one, and is nowhere `unknown`."""
    await bench.declare("s", asking(bench.state), effects={"look": "read"})
    worker = await bench.worker()
    await bench.call(worker, "s__look")
    (connection,) = bench.pools[0]._open.values()
    connection.stop()
    await until(lambda: not connection.is_open)

    async def progress(*_: object) -> None: ...

    params = types.CallToolRequestParams(name="fail", arguments={})
    with pytest.raises(SessionGone):
        await connection.call_tool(Call(EffectClass.WRITE), params, progress)


def answered(
    status: int, body: object = b"", kind: str = "application/json", **headers: str
) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers["content-type"] = kind
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(data))


LONG = {"content": [{"type": "text", "text": "x" * 20_000}]}


@pytest.mark.parametrize(
    "odd",
    [
        lambda reply: answered(202),
        lambda reply: answered(200, b"<p>thanks", "text/html"),
        lambda reply: answered(200, reply | {"result": LONG}),
        lambda reply: answered(301, location="http://s.test/done"),
        lambda reply: answered(302, location="/done"),
        lambda reply: answered(303, location="http://other.test/done"),
        lambda reply: answered(308, location="http://other.test/mcp"),
    ],
    ids=["accepted", "a page", "too long", "moved", "found", "see other", "elsewhere"],
)
async def test_an_answer_that_is_none_may_have_been_a_call(odd):
    """INV3: the server took the request; that it did nothing is more than it said. An answer that
    is too long is not read to its end.
    """

    def serve(request: httpx.Request) -> httpx.Response:
        if request.method != "POST":
            return answered(405)
        asked = json.loads(request.content)
        if "id" not in asked:
            return answered(202)
        reply = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] == "tools/call":
            made: httpx.Response = odd(reply)
            return made
        if asked["method"] != "initialize":
            return answered(200, reply | {"error": {"code": -32601, "message": "no"}})
        about = {"name": "s", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": about}
        return answered(200, reply | {"result": result})

    async def ignore(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        bridge = Bridge(client, 10_000)
        connection = Connection(
            "s",
            lambda: http_transport("http://s.test/mcp", protocol_client(bridge, {}), 1_000_000),
            60.0,
            bridge.fault_of,
        )
        await connection.ready()
        params = types.CallToolRequestParams(name="pay", arguments={})
        with pytest.raises(ConnectionLost):
            await connection.call_tool(Call(EffectClass.WRITE), params, ignore)
        await connection.close()
