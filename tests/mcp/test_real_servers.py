"""Servers that other people wrote, from PyPI and npm, end to end in runs."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from harness_common.core.run import Status
from tests.mcp.node_servers import NODE, node

BIN = Path(sys.executable).parent


async def test_server_time(bench):
    """PyPI, protocol 2026-07-28."""
    effects = {"get_current_time": "read", "convert_time": "read"}
    await bench.declare("time", {"command": [str(BIN / "mcp-server-time")]}, effects=effects)
    worker = await bench.worker()
    assert json.loads((await bench.call(worker, "time__get_current_time", timezone="UTC")).content)
    found = await bench.call(
        worker,
        "time__convert_time",
        source_timezone="UTC",
        time="12:00",
        target_timezone="Asia/Tokyo",
    )
    assert "21:00" in found.content
    found = await bench.call(worker, "time__get_current_time", timezone="Mars/Olympus")
    assert found.error_type == "MCP_TOOL_ERROR"


@pytest.mark.nightly
async def test_server_git(bench, tmp_path):
    """PyPI, protocol 2026-07-28."""
    repo = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    (repo / "a.txt").write_text("one")
    target = {
        "command": [str(BIN / "mcp-server-git"), "--repository", str(repo)],
        "env": {
            "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@localhost",
        },
    }  # fmt: skip
    await bench.declare("git", target, effects={"git_status": "read", "git_log": "read"})
    worker = await bench.worker()
    assert "a.txt" in (await bench.call(worker, "git__git_status", repo_path=str(repo))).content
    await bench.call(worker, "git__git_add", repo_path=str(repo), files=["a.txt"])
    done = await bench.call(worker, "git__git_commit", repo_path=str(repo), message="by a run")
    assert not done.is_error, done
    assert "by a run" in (await bench.call(worker, "git__git_log", repo_path=str(repo))).content


async def test_server_filesystem(bench, tmp_path):
    """npm, protocol 2025-11-25."""
    folder = tmp_path / "files"
    folder.mkdir()
    await bench.declare("fs", {"command": node("server-filesystem", "dist/index.js", str(folder))})
    worker = await bench.worker()
    wrote = await bench.call(
        worker, "fs__write_file", path=str(folder / "a.txt"), content="written by a run"
    )
    assert not wrote.is_error, wrote
    assert (folder / "a.txt").read_text() == "written by a run"
    read = await bench.call(worker, "fs__read_text_file", path=str(folder / "a.txt"))
    assert "written by a run" in read.content
    outside = await bench.call(worker, "fs__read_text_file", path="/etc/hostname")
    assert outside.error_type == "MCP_TOOL_ERROR"


async def test_server_everything_over_stdio(bench):
    """npm, protocol 2025-11-25: parts of all kinds, progress, a question in mid-call."""
    effects = {"trigger-elicitation-request": "idempotent", "get-sum": "read"}
    target = {"command": node("server-everything", "dist/index.js", "stdio")}
    await bench.declare("every", target, effects=effects)
    worker = await bench.worker()
    assert "5" in (await bench.call(worker, "every__get-sum", a=2, b=3)).content
    assert "art_" in (await bench.call(worker, "every__get-tiny-image")).content
    links = await bench.call(worker, "every__get-resource-links", count=2)
    assert "[resource link " in links.content
    weather = await bench.call(worker, "every__get-structured-content", location="Chicago")
    assert "temperature" in weather.content
    run_id = await bench.start(
        ("every__trigger-long-running-operation", {"duration": 1, "steps": 4})
    )
    await bench.step(run_id, worker)
    assert not (await bench.results(run_id))[0].is_error
    assert "tool.progress" in {e["type"] for e in await bench.play.events(run_id)}
    run_id = await bench.start(("every__trigger-elicitation-request", {}))
    assert await bench.step(run_id, worker) is Status.WAITING_INPUT
    await bench.pools[0].aclose()
    await bench.reply(run_id, '{"name": "Ada", "check": true}')
    assert await bench.step(run_id, await bench.worker()) is Status.RUNNING
    assert "Ada" in (await bench.results(run_id))[0].content


async def test_server_everything_over_http(bench):
    """Streamable HTTP; a server that was started again does not know the session any more."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    await bench.declare("every", {"url": f"http://127.0.0.1:{port}/mcp"}, effects={"echo": "read"})
    worker = await bench.worker()
    unreachable = await bench.start(("every__echo", {"message": "hi"}))
    await bench.step(unreachable, worker)
    assert "MCP_UNAVAILABLE" in await bench.failure(unreachable)
    for _ in range(2):
        server = await serve(port)
        try:
            for name in ("every__echo", "every__get-sum"):
                arguments = {"message": "hi"} if name == "every__echo" else {"a": 1, "b": 1}
                result = await bench.call(worker, name, **arguments)
                assert not result.is_error, result
        finally:
            server.kill()
            server.wait()
    lost = await bench.call(worker, "every__get-sum", a=1, b=1)
    assert lost.error_type in {"TRANSIENT", "MCP_UNAVAILABLE"}  # a write, and never sent


async def serve(port: int) -> subprocess.Popen[bytes]:
    """Start server-everything and wait until it answers."""
    server = subprocess.Popen(
        node("server-everything", "dist/index.js", "streamableHttp"),
        env={"PORT": str(port), "PATH": str(NODE.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                await client.get(f"http://127.0.0.1:{port}/mcp")
            except httpx.ConnectError:
                await asyncio.sleep(0.1)
            else:
                return server
