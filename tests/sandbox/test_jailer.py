"""The jailer dies, or its worker does: nothing of the cages is left, and calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness_common.contracts.sandbox import CageJob, SandboxTier
from harness_common.core.errors import Transient
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import probe, procs
from harness_worker.sandbox.attempts import ATTEMPTS
from harness_worker.sandbox.bubblewrap import Bubblewrap
from harness_worker.sandbox.service import WorkerSandbox
from tests.sandbox.conftest import TIERS

pytestmark = pytest.mark.anyio
SLEEPER = (
    "import os, time\nif os.fork() == 0: time.sleep(300)\nprint('on', flush=True); time.sleep(300)"
)


def alive(pids) -> list[int]:
    everybody = procs.scan()
    return [p for p in pids if p in everybody and not everybody[p].is_zombie]


async def until_gone(pids, limit_s=5.0) -> None:
    deadline = time.monotonic() + limit_s
    while alive(pids):
        assert time.monotonic() < deadline, alive(pids)
        await asyncio.sleep(0.02)


async def until_started(jailer: int, count: int) -> list[int]:
    """Wait until a call's own processes run; returns all that are below the jailer."""
    for _ in range(1000):
        found = procs.below(procs.scan(), [jailer], None)
        if len(found) > count:
            return [p.pid for p in found]
        await asyncio.sleep(0.02)
    raise AssertionError("the call did not start")


@pytest.mark.parametrize("tier", TIERS)
async def test_kill_9_of_the_jailer_in_a_call(tier):
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    try:
        await sandbox.link.start()
        first = sandbox.link.pid
        assert first is not None
        call = asyncio.ensure_future(sandbox.run_in(tier, CageJob("python", SLEEPER)))
        pids = await until_started(first, 5 if tier is SandboxTier.A else 3)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(Transient) as lost:
            await asyncio.wait_for(call, 10)
        assert lost.value.error_code == "SANDBOX_LOST"
        assert lost.value.detail["began"]
        await until_gone(pids)
        again = await sandbox.run_in(tier, CageJob("python", "print('again')"))
        assert again.stdout == "again\n"
        assert sandbox.link.restarts == 1
    finally:
        await sandbox.stop()


WORKER = """
import asyncio, sys
from harness_common.contracts.sandbox import CageJob, Limits, SandboxTier
from harness_common.settings import SandboxSettings
from harness_worker.sandbox.service import WorkerSandbox
async def main():
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    await sandbox.link.start()
    print(sandbox.link.pid, sandbox.link.folder, flush=True)
    job = CageJob("python", sys.argv[1], limits=Limits(memory_bytes=64 << 20))
    await asyncio.gather(*(sandbox.run_in(SandboxTier(t), job) for t in "AB"))
asyncio.run(main())
"""


async def test_kill_9_of_the_worker_in_a_call():
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, SLEEPER], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.split()[0].isdigit():
                break
        jailer, folder = line.split()
        pids = await until_started(int(jailer), 8)
        worker.kill()
    await until_gone(pids)
    assert not Path(folder).exists()


async def test_the_jailer_has_a_clean_start(sandbox):
    if os.geteuid() != 0:
        pytest.skip("only root may look into it")
    pid = sandbox.link.pid
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert environment == b"PATH=/usr/bin:/bin\0"
    targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    for target in targets:
        assert target == "/dev/null" or target.startswith(("socket:", "pipe:")), targets
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


@pytest.mark.parametrize("tier", TIERS)
async def test_no_tool_is_root_and_no_two_cages_share_a_user(sandbox, tier):
    source = "import os, time; print(os.getresuid(), os.getgroups()); time.sleep(1)"
    job = CageJob("python", source)
    results = await asyncio.gather(*(sandbox.run_in(tier, job) for _ in range(2)))
    told = {r.stdout for r in results}
    assert not any("(0," in text for text in told)
    if sandbox.link.facts["own_users"]:
        assert len(told) == 2


async def test_a_root_without_other_users_starts_nothing():
    """Its own user ids are all it has: it must refuse, not run a tool as root."""
    if os.geteuid() != 0:
        pytest.skip("only root can be refused")
    source = (
        "import os\nfrom harness_worker.sandbox.ground import Ground\n"
        "ground = Ground('', 0, None)\nground.drop(0)\nprint('started as', os.getuid())"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert "never started as root" in done.stderr
    assert done.stdout == ""


async def test_calls_beyond_the_slots_wait_their_turn():
    sandbox = WorkerSandbox(SandboxSettings(slots=2, warm=0))
    try:
        job = CageJob("shell", "sleep 0.1; echo ok")
        results = await asyncio.gather(*(sandbox.run_in(SandboxTier.B, job) for _ in range(6)))
        assert [r.stdout for r in results] == ["ok\n"] * 6
    finally:
        await sandbox.stop()


async def test_the_self_test_is_kept_for_a_boot_and_its_programs(tmp_path, monkeypatch):
    bwrap = Bubblewrap("/nowhere/bwrap", (0, 12, 0))
    facts = {"notes": [], "own_users": True, "memory_groups": True, "disk_quota": True}

    class Counted:
        bwrap_problem = "hidden"
        calls = 0

        async def run_in(self, tier, job, ask=None):
            del tier, job, ask
            self.calls += 1
            lines = [json.dumps([name, False, ""]) for name in ATTEMPTS]
            return type("R", (), {"stdout": "\n".join(lines), "stderr": ""})()

    sandbox = Counted()
    first = await probe.probe(sandbox, facts, tmp_path, bwrap)
    second = await probe.probe(sandbox, facts, tmp_path, bwrap)
    assert first == second
    assert (first.best, sandbox.calls) == (SandboxTier.B, 1)
    await probe.probe(sandbox, facts, tmp_path, Bubblewrap("/nowhere/bwrap", (0, 12, 1)))
    assert sandbox.calls == 2
    with contextlib.suppress(FileNotFoundError):
        os.unlink(tmp_path / "sandbox.json")
    await probe.probe(sandbox, facts, tmp_path, bwrap)
    assert sandbox.calls == 3
