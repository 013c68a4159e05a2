"""Calls in a cage through the runner: what the ledger and the model get to know."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness_common.core.step import ToolsDone
from harness_common.core.tool_call import CallStatus
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import kernel
from harness_worker.sandbox.service import WorkerSandbox
from harness_worker.steps import tools
from tests.sandbox import caged_tools
from tests.store.play import say
from tests.worker.runtime import claim_tools_step, make_runtime

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
