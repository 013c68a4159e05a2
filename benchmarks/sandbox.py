"""(k) What a cage adds to a call: from asking to the result, with everything of the cage gone.

The same program runs without a cage (a fresh interpreter as a subprocess), and in each tier: with
cages kept warm, one call at a time with a little time between; and cold, each cage made for its
call. Turns alternate, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.options import Options
from benchmarks.report import Measure, Outcome
from benchmarks.stack import Stack
from harness_common.contracts.sandbox import CageJob, SandboxTier
from harness_common.settings import SandboxSettings
from harness_worker.sandbox.service import WorkerSandbox

TITLE: Final = "what a sandbox adds to a call"
ADDED_MS: Final = 15.0
_PAUSE_S: Final = 0.25
"""Between two calls: a run asks its model in between, which takes longer."""
_SOURCE: Final = "print(6 * 7)"


def run(stack: Stack, options: Options) -> Outcome:
    del stack
    return asyncio.run(_measure(10 if options.quick else 60))


async def _measure(turns: int) -> Outcome:
    problems: list[str] = []
    warm, cold = WorkerSandbox(SandboxSettings()), WorkerSandbox(SandboxSettings(warm=0))
    kinds: dict[str, Callable[[], Awaitable[str]]] = {"none": _bare}
    for tier in (SandboxTier.A, SandboxTier.B):
        kinds[f"{tier} warm"] = lambda t=tier: _caged(warm, t)  # type: ignore[misc]
        kinds[f"{tier} cold"] = lambda t=tier: _caged(cold, t)  # type: ignore[misc]
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        for turn in range(turns + 2):
            for kind, call in kinds.items():
                begun = time.perf_counter()
                answer = await call()
                if turn >= 2:
                    took[kind].append((time.perf_counter() - begun) * 1000)
                if answer.strip() != "42":
                    problems.append(f"{kind}: answered {answer[:100]!r}")
                await asyncio.sleep(_PAUSE_S)
    finally:
        await warm.stop()
        await cold.stop()
    medians = {kind: statistics.median(values) for kind, values in took.items()}
    bare = medians["none"]
    measures = [Measure("a fresh interpreter without a cage, median", bare, "ms")]
    for kind, value in medians.items():
        if kind != "none":
            target = ADDED_MS if kind.endswith("warm") else None
            measures.append(_added(f"tier {kind}: added, median", value - bare, target))
    return Outcome(measures, {"turns": turns, "median_ms": medians}, problems)


def _added(name: str, value_ms: float, target_ms: float | None) -> Measure:
    if target_ms is None:
        return Measure(name, value_ms, "ms")
    return Measure(name, value_ms, "ms", target_ms, "most")


async def _bare() -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _SOURCE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


async def _caged(sandbox: WorkerSandbox, tier: SandboxTier) -> str:
    result = await sandbox.run_in(tier, CageJob("python", _SOURCE))
    return result.stdout
