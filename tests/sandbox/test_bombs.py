"""Every limit stops what passes it, says which it was, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time

import pytest

from harness_common.contracts.sandbox import CageJob, Limits, SandboxTier
from harness_common.core.errors import Denied
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import procs
from harness_worker.sandbox.service import WorkerSandbox
from tests.sandbox.conftest import TIERS

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


def below_jailer(sandbox) -> int:
    return len(procs.below(procs.scan(), [sandbox.link.pid], None)) - 1


BOMBS = {
    "cpu_s": ("while True: pass", Limits(cpu_s=1)),
    "memory_bytes": (
        "x = []\nwhile True: x.append(bytearray(8 << 20))",
        Limits(memory_bytes=128 * MIB),
    ),
    "processes": (
        "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(60)",
        Limits(processes=16),
    ),
    "output_bytes": (
        "import os\nchunk = b'x' * 65536\nfor _ in range(16384): os.write(1, chunk)",
        Limits(output_bytes=MIB),
    ),
    "disk_bytes": (
        "f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))",
        Limits(disk_bytes=8 * MIB),
    ),
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", BOMBS)
async def test_bomb_is_stopped_and_its_limit_named(sandbox, tier, name):
    source, limits = BOMBS[name]
    begun = time.monotonic()
    result = await sandbox.run_in(tier, CageJob("python", source, limits=limits))
    assert result.hit is not None, result
    assert (result.hit.name, result.hit.value) == (name, getattr(limits, name))
    assert time.monotonic() - begun < 15
    assert len(result.stdout) <= limits.output_bytes


SHELL_BOMBS = {
    "processes": (":(){ :|:& };:; sleep 20", Limits(processes=16)),
    "cpu_s": ("while :; do :; done", Limits(cpu_s=1)),
    "disk_bytes": ("head -c 60000000 /dev/zero > big", Limits(disk_bytes=8 * MIB)),
}


@pytest.mark.parametrize("name", SHELL_BOMBS)
async def test_shell_bomb_is_stopped_and_its_limit_named(sandbox, name):
    script, limits = SHELL_BOMBS[name]
    result = await sandbox.run_in(SandboxTier.A, CageJob("shell", script, limits=limits))
    assert result.hit is not None, result
    assert result.hit.name == name


LEFTOVER = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        if os.fork() == 0:
            os.closerange(0, 64)
            time.sleep(300)
        os._exit(0)
print("done", flush=True)
"""


@pytest.mark.parametrize("tier", TIERS)
async def test_leftovers_that_daemonise_are_gone(tier):
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    try:
        result = await sandbox.run_in(tier, CageJob("python", LEFTOVER))
        assert (result.exit_code, result.stdout) == (0, "done\n")
        assert below_jailer(sandbox) == 0
    finally:
        await sandbox.stop()


@pytest.mark.parametrize("tier", TIERS)
async def test_timeout_ends_the_cage_before_it_is_reported(tier):
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    try:
        await sandbox.link.start()
        for limit_s in (0.001, 0.02, 0.1, 1.5):  # while it is made, while it starts, in the call
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await sandbox.run_in(tier, CageJob("shell", "sleep 60 & sleep 60"))
            assert below_jailer(sandbox) == 0, limit_s
    finally:
        await sandbox.stop()


async def test_memory_of_a_group_of_processes_counts_together(sandbox):
    """Eight processes of 40 MiB each: more than the limit only together."""
    if not sandbox.link.facts["memory_groups"]:
        pytest.skip("no cgroup can be written here")
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(os.urandom(1 << 20)) * 40
        time.sleep(5)
        os._exit(0)
for _ in range(8): os.wait()
print("all lived")
"""
    limits = Limits(memory_bytes=128 * MIB)
    result = await sandbox.run_in(SandboxTier.A, CageJob("python", source, limits=limits))
    assert result.hit is not None
    assert result.hit.name == "memory_bytes"


async def test_two_hundred_calls_leave_nothing(tmp_path, monkeypatch):
    def state():
        with open("/proc/self/mountinfo") as file:
            mounts = len(file.readlines())
        return mounts, sorted(os.listdir("/mnt")), os.listdir(tmp_path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # /tmp has folders of others
    before, fds = state(), len(os.listdir("/proc/self/fd"))
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    try:
        await sandbox.link.start()

        async def one(number: int) -> str:
            tier = TIERS[number % 2]
            result = await sandbox.run_in(tier, CageJob("shell", f"echo {number} > f; cat f"))
            return result.stdout.strip()

        told = await asyncio.gather(*(one(n) for n in range(200)))
        assert told == [str(n) for n in range(200)]
        everybody = procs.scan()
        assert below_jailer(sandbox) == 0
        assert not [p for p in everybody.values() if p.is_zombie and p.parent == sandbox.link.pid]
        with open(f"/proc/{sandbox.link.pid}/mountinfo") as file:
            assert not [line for line in file if " work " in line]
        assert len(os.listdir(f"/proc/{sandbox.link.pid}/fd")) < 12
    finally:
        await sandbox.stop()
    mounts, tmp, mnt = state()
    assert (mounts, mnt) == (before[0], before[2])
    assert not [name for name in set(tmp) - set(before[1]) if name.startswith("harness-cages-")]
    for _ in range(100):
        if len(os.listdir("/proc/self/fd")) <= fds + 3:
            return
        await asyncio.sleep(0.02)  # closing takes a turn of the loop
    pytest.fail("descriptors are left open")


async def test_refused_below_the_declared_tier(tmp_path):
    """With bubblewrap hidden a tool of tier A is refused, explained and counted; B still runs."""
    config = SandboxSettings(bwrap=tmp_path / "absent", warm=0)
    sandbox = WorkerSandbox(config)
    try:
        with pytest.raises(Denied) as refused:
            await sandbox.run(CageJob("python", "print(1)"), SandboxTier.A)
        assert refused.value.error_code == "SANDBOX_UNAVAILABLE"
        assert "bubblewrap" in refused.value.message
        assert sandbox.refused == 1
        report = await sandbox.report()
        assert report.best is SandboxTier.B
        result = await sandbox.run(CageJob("python", "print(1)"), SandboxTier.B)
        assert (result.stdout, result.tier) == ("1\n", SandboxTier.B)
    finally:
        await sandbox.stop()
