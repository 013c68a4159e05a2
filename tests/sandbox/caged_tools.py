"""User tools for the tests: their functions run inside a cage."""

from __future__ import annotations

import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from harness_worker.sdk import (
    Denied,
    Limits,
    NeedInput,
    NewArtifact,
    ToolContext,
    ToolOutput,
    WaitUntil,
    tool,
)


@tool(effect="read", sandbox="B", name="caged_echo")
async def caged_echo(ctx: ToolContext, text: str, times: int = 2) -> ToolOutput:
    """Say it again."""
    await ctx.progress("half", 0.5)
    kept = await ctx.artifact("early.txt", "text/plain", text.encode())
    data = await ctx.read_artifact(kept)
    content = {
        "text": data.decode() * times,
        "run": ctx.run_id,
        "uid": os.getuid(),
        "folder": os.listdir("."),
        "token": os.environ.get("TOKEN"),
        "database": os.environ.get("HARNESS_DATABASE_URL"),
    }
    return ToolOutput(content, (NewArtifact("late.bin", "application/octet-stream", b"\0\1"),))


@tool(effect="read", sandbox="B", name="caged_errors")
def caged_errors(kind: str) -> Any:
    """Fail in the way that is asked for."""
    if kind == "denied":
        raise Denied("not for you", code="NOT_YOU")
    if kind == "plain":
        raise KeyError("nothing")
    if kind == "shadow":
        Path("/etc/shadow").read_text()
    if kind == "mount":
        import ctypes

        ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None)
    if kind == "exit":
        raise SystemExit(3)
    if kind == "vanish":
        os.kill(os.getppid(), 9)
        os.kill(os.getpid(), 9)
    return "fine"


@tool(effect="read", sandbox="B", name="caged_question", secrets=["token"])
async def caged_question(ctx: ToolContext) -> Any:
    """Ask first, then use a secret."""
    if ctx.answer is None:
        return NeedInput("which one?", {"seen": [1, 2]}, ("a", "b"), timeout_s=60)
    return {"answer": ctx.answer, "state": ctx.state, "length": len(await ctx.secret("token"))}


@tool(effect="read", sandbox="A", name="caged_wait")
def caged_wait(ctx: ToolContext) -> Any:
    """Wait until the step's time."""
    return WaitUntil(ctx.now) if ctx.resumed is None else f"resumed {ctx.resumed.isoformat()}"


@tool(effect="read", sandbox="A", name="caged_fetch", hosts=["localhost:8443", "allowed.test:8443"])
def caged_fetch(url: str) -> str:
    """Fetch with what the environment says of proxies."""
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(url, timeout=5, context=context) as answer:
        return str(answer.read(), "utf-8")


@tool(effect="read", sandbox="B", name="caged_chroot")
def caged_chroot(i: int) -> str:
    """Try to leave."""
    os.chroot("/")
    return f"left {i}"


@tool(effect="write", sandbox="B", name="caged_busy", limits=Limits(cpu_s=1))
def caged_busy(i: int) -> str:
    """Never end."""
    while True:
        i += 1


@tool(effect="write", sandbox="A", name="caged_send", hosts=["allowed.test:8443"])
def caged_send(kind: str) -> str:
    """Send something, and fail in the way that is asked for."""
    if kind == "refused":
        raise Denied("not for you", code="NOT_YOU")
    raise ConnectionResetError(kind)


@tool(effect="read", sandbox="B", name="caged_flood", limits=Limits(artifact_bytes=1_000))
async def caged_flood(ctx: ToolContext) -> str:
    """Keep more than is allowed, a little at a time."""
    for i in range(5):
        await ctx.artifact(f"{i}.bin", "application/octet-stream", b"x" * 300)
    return "kept"
