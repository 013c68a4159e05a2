"""Calls in a cage through the runner: what the ledger and the model get to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from harness_common.contracts.sandbox import CageJob, SandboxTier
from harness_common.core.step import ToolsDone
from harness_common.core.tool_call import CallStatus
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import kernel
from harness_worker.sandbox.service import WorkerSandbox
from harness_worker.steps import tools
from tests.sandbox import caged_tools
from tests.store.play import say
from tests.worker.runtime import claim_tools_step, make_runtime
from tests.worker.tool_steps import a_worker, asked, work

pytestmark = pytest.mark.skipif(not kernel.SUPPORTED, reason="cages need Linux on x86-64")
TOOLS = [caged_tools.caged_chroot, caged_tools.caged_busy]


@pytest.fixture
async def sandbox(tmp_path) -> AsyncIterator[WorkerSandbox]:
    made = WorkerSandbox(SandboxSettings(), tmp_path, modules=["tests.sandbox.caged_tools"])
    yield made
    await made.stop()


async def test_the_ledger_says_what_stopped_a_caged_call(play, db, sandbox):
    runtime = await make_runtime(db, tools=TOOLS)
    runtime.sandbox = sandbox
    run_id = await play.start()
    await play.step(run_id, say(tools=["caged_chroot", "caged_busy"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    result = await tools.run(ctx)
    assert isinstance(result, ToolsDone)
    blocked, busy = result.outcomes
    assert (blocked.status, blocked.error_type) == (CallStatus.FAILED, "TOOL_EXECUTION_BLOCKED")
    assert "seccomp: chroot" in blocked.content
    # A write without a way out has done nothing outside: it failed, and is not unknown.
    assert (busy.status, busy.error_type) == (CallStatus.FAILED, "LIMIT_EXCEEDED")
    assert "cpu_s = 1" in busy.content
    await play.settle(ctx.run, result)
    rows = await play.calls(run_id)
    assert [row["error_type"] for row in rows] == ["TOOL_EXECUTION_BLOCKED", "LIMIT_EXCEEDED"]


async def test_without_the_tier_a_call_is_refused_and_not_run_bare(play, db, tmp_path):
    runtime = await make_runtime(db, tools=[caged_tools.caged_chroot])
    run_id = await play.start()
    await play.step(run_id, say(tools=["caged_chroot"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    assert runtime.sandbox is None
    result = await tools.run(ctx)
    assert isinstance(result, ToolsDone)
    assert result.outcomes[0].error_type == "SANDBOX_UNAVAILABLE"


async def test_a_write_that_found_no_cage_has_not_happened(play, db, tmp_path):
    """Nobody is asked what became of a call that was never made, and its tool is not at fault."""
    made = WorkerSandbox(SandboxSettings(slots=1), tmp_path, modules=["tests.sandbox.caged_tools"])
    await made.report()
    began = asyncio.Event()
    other = asyncio.ensure_future(
        made.run(CageJob("shell", "sleep 60"), SandboxTier.B, on_start=began.set)
    )
    await began.wait()
    busy = caged_tools.caged_busy
    busy = replace(busy, spec=replace(busy.spec, timeout_s=0.2))
    runtime = await a_worker(db, [busy], breaker_failures=1)
    runtime.sandbox = made
    try:
        (call,) = await work(runtime, play, await asked(play, ("caged_busy", {"i": 1})))
    finally:
        other.cancel()
        await asyncio.wait([other])
        await made.stop()
    assert (call["status"], call["error_type"]) == ("failed", "SANDBOX_BUSY")
    assert not runtime.breakers.open


@pytest.mark.parametrize(("kind", "opens"), [("plain", True), ("vanish", True), ("denied", False)])
async def test_what_nobody_named_in_a_cage_opens_the_breaker(play, db, sandbox, kind, opens):
    """As outside of one: a tool that crashes is at fault, one that refuses is not."""
    runtime = await a_worker(db, [caged_tools.caged_errors], breaker_failures=1)
    runtime.sandbox = sandbox
    (call,) = await work(runtime, play, await asked(play, ("caged_errors", {"kind": kind})))
    assert call["status"] == "failed"
    assert bool(runtime.breakers.open) is opens
