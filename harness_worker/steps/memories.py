"""What the steps of a run need of its memory."""

from __future__ import annotations

from harness_common.contracts.memory import MemorySpec
from harness_worker.memory.recall import EMPTY, MemorySection, memory_section
from harness_worker.memory.run_memory import RunMemory
from harness_worker.steps.context import StepContext

_FORGET = "memory_forget"


def memory_of(ctx: StepContext) -> RunMemory:
    """Return the memory of the run; an agent that says nothing of it has that of its own name."""
    runtime = ctx.runtime
    return RunMemory(
        runtime.db,
        runtime.embedder,
        runtime.settings.memory,
        ctx.run,
        ctx.spec.memory or MemorySpec(),
        ctx.history + ctx.messages,
    )


async def recalled(ctx: StepContext) -> MemorySection:
    """Return what the run is told of what was remembered; nothing unless its agent asks for it."""
    if ctx.spec.memory is None:
        return EMPTY
    with_ids = _FORGET in ctx.spec.tools
    return await memory_section(memory_of(ctx), ctx.messages, with_ids=with_ids)
