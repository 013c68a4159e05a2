"""Attempts at one call: the tool's function within its timeout, tried again where that is safe.

Whatever the function does becomes a value (`Ended`); the breaker of the tool is told of it.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from dataclasses import replace
from typing import Final

import structlog

from harness_common.contracts.sandbox import SandboxTier
from harness_common.contracts.tool import EffectClass, Tool, ToolReturn, ToolSpec
from harness_common.core import events as ev
from harness_common.core.errors import HarnessError, Invalid
from harness_common.core.message import Json
from harness_common.core.retry import RetryRule, backoff_s
from harness_common.core.tool_call import CallStatus
from harness_common.store.connection import DatabaseUnavailable
from harness_worker.tools.breakers import GO, Leave, seconds_until
from harness_worker.tools.caged import call_caged
from harness_worker.tools.call import CancelAsked, Ended, PendingCall, ToolScope
from harness_worker.tools.call_context import CallContext
from harness_worker.tools.children import ChildFailed
from harness_worker.tools.faults import classify, failed
from harness_worker.tools.normalise import normalise
from harness_worker.tools.notes import note

log = structlog.get_logger()

_MOST: Final = {EffectClass.READ: 2, EffectClass.IDEMPOTENT: 1, EffectClass.WRITE: 1}
_BACKOFF: Final = RetryRule(base_s=0.2, max_s=1.5)
_PATIENCE_S: Final = 3.0
"""How long a call waits between its attempts in all: longer waits are for the step, not in it."""


def most_attempts(spec: ToolSpec) -> int:
    """Return how often a call may be tried within a step; a `write` once, whatever it says."""
    if spec.effect is EffectClass.WRITE:
        return 1
    return spec.max_attempts or _MOST[spec.effect]


async def attempts(scope: ToolScope, call: PendingCall, tool: Tool, leave: Leave = GO) -> Ended:
    """Try a read or idempotent call until it gives a result or that is pointless.

    Raises `CancelAsked` when nothing more may be started.
    """
    begun, waited_s, tries = time.monotonic(), 0.0, list[Json]()
    while True:
        again = replace(call, attempt=call.attempt + len(tries)) if tries else call
        ended = await attempt(scope, again, tool)
        wait_s = _wait_s(ended, len(tries) + 1) if ended.retry else 0.0
        is_last = not ended.retry or len(tries) + 1 >= most_attempts(tool.spec)
        is_last = is_last or waited_s + wait_s > _PATIENCE_S
        # Who tries a broken tool does so with all its attempts: the last one tells.
        if is_last or leave.probe is None or not ended.fault:
            is_last, leave = await tell(scope, call, tool, ended, leave) or is_last, GO
        if is_last:
            if not tries:
                return ended
            total_ms = (time.monotonic() - begun) * 1000
            return replace(ended, failed_attempts=tuple(tries), duration_ms=total_ms)
        tries.append(
            {
                "attempt": call.attempt + len(tries) + 1,
                "error_type": ended.error_type,
                "why": ended.why,
                "ms": round(ended.duration_ms, 1),
                "at": scope.clock().isoformat(),
            }
        )
        told = {"call": f"{scope.step}.{call.index}", "tool": tool.spec.name, **tries[-1]}
        await note(scope, ev.TOOL_RETRIED, told | {"retry_in_s": round(wait_s, 3)})
        await asyncio.sleep(wait_s)
        waited_s += wait_s
        if scope.held.cancel_requested or scope.held.release_asked:
            raise CancelAsked


def _wait_s(ended: Ended, failures: int) -> float:
    """Return the wait before the next attempt; jitter is added to a Retry-After, never taken."""
    jitter = random.random()
    wait_s = backoff_s(_BACKOFF, failures, jitter)
    if ended.retry_after_s is None:
        return wait_s
    return max(wait_s, ended.retry_after_s * (1 + 0.1 * jitter))


async def tell(scope: ToolScope, call: PendingCall, tool: Tool, ended: Ended, leave: Leave) -> bool:
    """Tell the tool's breaker how an attempt ended; True if that opened it."""
    tenant_id, name = scope.run.tenant_id, tool.spec.name
    payload: dict[str, Json] = {"call": f"{scope.step}.{call.index}", "tool": name}
    if not ended.fault:
        if await scope.breakers.worked(tenant_id, name, leave):
            await note(scope, ev.TOOL_BREAKER_CLOSED, payload)
        return False
    shut = await scope.breakers.failed(tenant_id, name, str(ended.error_type), leave)
    if shut is None:
        return False
    payload |= {
        "failures": shut.failures,
        "until": shut.until.isoformat(),
        "open_s": round(seconds_until(shut, scope.clock()), 1),
        "reason": f"{ended.error_type}: {ended.why}",
    }
    await note(scope, ev.TOOL_BREAKER_OPENED, payload)
    return True


async def attempt(
    scope: ToolScope, call: PendingCall, tool: Tool, ctx: CallContext | None = None
) -> Ended:
    """Call the function once, within its timeout, and make a value of whatever it does. Whoever is
    interrupted sees in `ctx` whether the call was still waiting for its turn.
    """
    spec, begun, returned = tool.spec, time.monotonic(), False
    limit_s = spec.limit_s
    ctx, timer = ctx or CallContext(scope, call, tool), asyncio.timeout(limit_s)
    try:
        async with timer:
            value = ctx.cleaned(await _call(scope, tool, ctx, call.arguments))
        returned = True
        ended = await normalise(scope, ctx, call, tool, value)
    except (DatabaseUnavailable, ChildFailed):
        raise  # not the tool's own: nothing is known about the effect; the parent fails too
    except TimeoutError as error:
        late = f"no result within {limit_s:g} s" if timer.expired() else str(error)
        if ctx.queued and timer.expired():
            ended = _had_no_turn(spec, limit_s)
        else:
            ended = classify(spec, error, ctx.clean(late))
    except Exception as error:
        # Before it is cut anywhere: half a secret would not be recognised.
        said = ctx.clean(error.message if isinstance(error, HarnessError) else str(error))
        ended = classify(spec, error, said)
        if returned and spec.effect is EffectClass.WRITE and not isinstance(error, Invalid):
            # The tool has done its work; it is its result that could not be kept.
            ended = failed(spec.name, str(ended.error_type), said, CallStatus.UNKNOWN)
        if not isinstance(error, HarnessError):  # nobody named it: somebody may have to mend it
            log.warning("tool.raised", tool=spec.name, call=ctx.call_id, exc_info=error)
    if ctx.queued and ended.status is CallStatus.UNKNOWN:
        ended = replace(ended, status=CallStatus.FAILED)  # nothing of it was run
    return replace(
        ended,
        content=ctx.clean(ended.content),
        why=ctx.clean(ended.why),
        began=True,
        artifacts=tuple(ctx.artifacts),
        duration_ms=(time.monotonic() - begun) * 1000,
    )


def _had_no_turn(spec: ToolSpec, limit_s: float) -> Ended:
    caged = spec.sandbox is not SandboxTier.NONE
    code, what = ("SANDBOX_BUSY", "cage") if caged else ("TOOL_THREADS_BUSY", "thread")
    why = f"no {what} was free for it within {limit_s:g} s. Nothing was run"
    return failed(spec.name, code, why)


async def _call(scope: ToolScope, tool: Tool, ctx: CallContext, arguments: Json) -> ToolReturn:
    threads, name = scope.threads, tool.spec.name
    if tool.spec.sandbox is not SandboxTier.NONE:
        ctx.queued = True
        return await call_caged(scope.sandbox, tool, ctx, arguments, ctx.started)
    try:
        if inspect.iscoroutinefunction(tool.fn):
            return await threads.follow(name, tool.fn(ctx, **arguments))
        ctx.queued = True
        value = await threads.run(lambda: tool.fn(ctx, **arguments), ctx.started)
        return await threads.follow(name, value) if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        # A tool's exit is an answer for the model, not the end of the worker's event loop.
        raise RuntimeError(f"the tool raised {type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        if _is_cancelling():
            raise
        raise RuntimeError("the tool was cancelled from within") from error


def _is_cancelling() -> bool:
    """Tell whether somebody asked the current task to stop (a cancel, a stop, a timeout)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
