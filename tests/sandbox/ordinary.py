"""Runs as an ordinary user: prints what holds, and what stops a bomb, as one line of JSON.

As root it first becomes one, in a mount namespace of its own in which that user can reach the
interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from harness_common.contracts.sandbox import CageJob, Limits, SandboxTier
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import ground, kernel, procs
from harness_worker.sandbox.probe import try_tier, victims
from harness_worker.sandbox.service import WorkerSandbox

_USER = 64_998
_MIB = 1024 * 1024
BOMBS = {
    "memory_bytes": "x = []\nwhile True: x.append(bytearray(8 << 20))",
    "processes": "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(60)",
    "disk_bytes": "import time\nfor n in range(64): open(f'f{n}', 'wb').write(bytes(1 << 20))\n"
    "time.sleep(60)",
}
LIMITS = Limits(memory_bytes=128 * _MIB, processes=16, disk_bytes=8 * _MIB)


async def measure() -> dict[str, Any]:
    """Try both tiers."""
    sandbox = WorkerSandbox(SandboxSettings(warm=0))
    told: dict[str, Any] = {"uid": os.getuid()}
    try:
        for tier in (SandboxTier.A, SandboxTier.B):
            async with victims() as env:
                told[f"{tier} why not"] = (await try_tier(sandbox, tier, env)).why_not
            for name, source in BOMBS.items():
                job = CageJob("python", source, limits=LIMITS)
                hit = (await sandbox.run_in(tier, job)).hit
                told[f"{tier} {name}"] = hit and hit.name
        told["left"] = len(procs.below(procs.scan(), [sandbox.link.pid or 0], None)) - 1
    finally:
        await sandbox.stop()
    return told


def main() -> None:
    """Become an ordinary user, then measure."""
    if os.geteuid() == 0:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        ground.expose([sys.base_prefix, sys.prefix, os.getcwd()])
        os.setgroups([])
        os.setresgid(_USER, _USER, _USER)
        os.setresuid(_USER, _USER, _USER)
        os.execv(sys.executable, [sys.executable, "-m", "tests.sandbox.ordinary"])
    sys.stdout.write(json.dumps(asyncio.run(measure())) + "\n")


if __name__ == "__main__":
    main()
