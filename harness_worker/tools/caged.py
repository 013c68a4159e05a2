"""Sends a call to the sandbox; makes of its end a value, or an error that the model understands.

The runner calls this for every tool whose `spec.sandbox` is not `none`. A tool with a
`CagedProgram` in its meta says itself what to run; of any other, the function is called inside the
cage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ssrfguard import SSRFGuardError, connect, resolve

from harness_common.contracts.sandbox import Ask, CageJob, CageResult, Sandbox, SandboxTier
from harness_common.contracts.tool import EffectClass, Tool, ToolContext, ToolReturn
from harness_common.core.errors import (
    Denied,
    HarnessError,
    Permanent,
    Transient,
    UnknownOutcome,
)
from harness_common.core.message import Json
from harness_common.store.connection import DatabaseUnavailable
from harness_worker.egress.reachable import Reachable
from harness_worker.sandbox import values
from harness_worker.telemetry import metrics

META_KEY: Final = "program"
_CONNECT_S: Final = 10.0
_TAIL_CHARS: Final = 1_500
_NOT_BEGUN: Final = frozenset({"SANDBOX_FAILED", "SANDBOX_LOST"})


class Broken(Permanent):
    """A tool in a cage ended in a way that nobody named: an exception, a crash, nonsense."""

    code = "TOOL_BROKEN"


_KIND: Final[Mapping[str, type[Denied | Permanent]]] = {
    "TOOL_EXECUTION_BLOCKED": Denied,
    "EXECUTION_ERROR": Broken,
}


@dataclass(frozen=True, slots=True)
class CagedProgram:
    """What to run for a call of a built-in caged tool, and what to make of its end."""

    prepare: Callable[[ToolContext, Mapping[str, Json]], Awaitable[CageJob]]
    finish: Callable[[CageResult, Mapping[str, Json]], ToolReturn]


async def call_caged(
    sandbox: Sandbox | None,
    tool: Tool,
    ctx: ToolContext,
    arguments: Json,
    on_start: Callable[[], None] = lambda: None,
) -> ToolReturn:
    """Run one call in a cage; `on_start` is called as it is handed over: before, it only waits.

    Raises `Denied` (`SANDBOX_UNAVAILABLE`, `TOOL_EXECUTION_BLOCKED`), `Permanent`
    (`LIMIT_EXCEEDED`), `Broken`, and what the tool itself raised.
    """
    spec = tool.spec
    if sandbox is None:
        metrics.sandbox_refusals.inc()
        raise Denied(
            f"it needs sandbox tier {spec.sandbox}, and this worker has no sandbox",
            code="SANDBOX_UNAVAILABLE",
        )
    program: CagedProgram | None = tool.meta.get(META_KEY)
    job = await program.prepare(ctx, arguments) if program else _tool_job(tool, ctx, arguments)
    try:
        result = await sandbox.run(job, spec.sandbox, _questions(ctx), on_start=on_start)
    except (Transient, Permanent) as error:
        if isinstance(error, DatabaseUnavailable) or not _began(error):
            raise
        if _acts(tool):
            raise UnknownOutcome(error.message, code=error.error_code) from error
        if error.error_code == values.BAD_RESULT:
            raise Broken(error.message, code=error.error_code) from error
        raise
    _raise_if_stopped(tool, result)
    if program is not None:
        return program.finish(result, arguments)
    if result.value is None:
        raise _may_have_acted(
            tool, f"its process ended with exit code {result.exit_code}", "EXECUTION_ERROR", result
        )
    try:
        return values.unpack(result.value, result.value_body)
    except Permanent as error:
        if not values.is_unnamed(result.value, error):
            raise
        kind = UnknownOutcome if _acts(tool) else Broken
        raise kind(error.message, code=error.error_code) from error


def caged_modules(tools: Iterable[Tool]) -> list[str]:
    """Return the modules of the tools whose functions run in cages."""
    modules = [
        tool.fn.__module__
        for tool in tools
        if tool.spec.sandbox is not SandboxTier.NONE and META_KEY not in tool.meta
    ]
    return list(dict.fromkeys(modules))


def checked_dial(
    allow: Iterable[str],
) -> Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Return what opens the connections of caged tools: public addresses, and those that the
    operator allows.
    """
    reachable = Reachable(allow)

    async def dial(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        shown = f"[{host}]" if ":" in host else host
        try:
            url = f"https://{shown}:{port}/"
            policy = reachable.policy_for(url)
            target = policy.check_url(url)
            # Resolved once; every address is checked, and the connection is to one of those.
            addresses = await asyncio.to_thread(resolve, target, policy=policy)
            sock = await asyncio.to_thread(connect, addresses, policy=policy, timeout=_CONNECT_S)
        except (SSRFGuardError, ValueError) as error:
            raise Denied(f"{host}:{port} may not be reached: {error}", code="E403") from error
        sock.setblocking(False)
        return await asyncio.open_connection(sock=sock)

    return dial


def _tool_job(tool: Tool, ctx: ToolContext, arguments: Json) -> CageJob:
    resumed = ctx.resumed.isoformat() if ctx.resumed else None
    plain: dict[str, Any] = {
        "tenant_id": ctx.tenant_id,
        "run_id": ctx.run_id,
        "session_id": ctx.session_id,
        "call_id": ctx.call_id,
        "idempotency_key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "now": ctx.now.isoformat(),
        "resumed": resumed,
        "state": ctx.state,
        "answer": ctx.answer,
        "config": dict(ctx.config),
    }
    return CageJob(
        kind="tool",
        module=tool.fn.__module__,
        call={"tool": tool.spec.name, "arguments": arguments, "context": plain},
        env=tool.meta.get("env", {}),
        hosts=tool.spec.hosts,
        limits=tool.spec.limits,
    )


def _questions(ctx: ToolContext) -> Ask:
    """Answer what a caged tool asks of its context."""

    async def answer(head: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        match head["ask"]:
            case "secret":
                return {"secret": await ctx.secret(str(head["name"]))}, b""
            case "progress":
                fraction = head["fraction"]
                done = None if fraction is None else float(fraction)
                await ctx.progress(str(head["message"]), done)
                return {}, b""
            case "artifact":
                name, media_type = str(head["name"])[:200], str(head["media_type"])[:100]
                return {"id": await ctx.artifact(name, media_type, body)}, b""
            case "read_artifact":
                return {}, await ctx.read_artifact(str(head["id"]))
        raise ValueError("no such question")

    return answer


def _raise_if_stopped(tool: Tool, result: CageResult) -> None:
    if result.hit is not None:
        raise _may_have_acted(
            tool,
            f"it was stopped by the limit {result.hit}. Do less in one call.",
            "LIMIT_EXCEEDED",
            result,
        )
    if result.blocked is not None:
        raise _may_have_acted(
            tool,
            f"exit {result.exit_code}: the sandbox does not allow this ({result.blocked}). "
            "It has no network and may write only in its work folder.",
            "TOOL_EXECUTION_BLOCKED",
            result,
        )


def _acts(tool: Tool) -> bool:
    """Tell whether a tool can do outside what cannot be taken back."""
    return tool.spec.effect is EffectClass.WRITE and bool(tool.spec.hosts)


def _began(error: HarnessError) -> bool:
    """Tell whether a call that brought no result was handed to its cage: no cage, or its loss
    before, is the sandbox's failure; the rest comes in the middle of a call.
    """
    return bool(error.detail.get("began")) or error.error_code not in _NOT_BEGUN


def _may_have_acted(
    tool: Tool, cause: str, code: str, result: CageResult
) -> Denied | Permanent | UnknownOutcome:
    """Make the error; a `write` tool with a way out may have done a part of its work."""
    said = "\n".join(
        f"{name}: …{text[-_TAIL_CHARS:].strip()}"
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr))
        if text.strip()
    )
    message = f"{cause}\n{said}" if said else cause
    if _acts(tool):
        return UnknownOutcome(message, code=code)
    return _KIND.get(code, Permanent)(message, code=code)
