"""Makes of what a tool returned what is stored: text for the model, artifacts for what is bulky, or
what the call waits for. A result that is not what the tool promised is kept and explained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from harness_common.contracts.tool import (
    AskUser,
    EffectClass,
    NeedInput,
    StartChild,
    Tool,
    ToolOutput,
    ToolReturn,
    WaitUntil,
)
from harness_common.core.message import Json
from harness_common.core.step import Wait
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.json_codec import storable_text
from harness_worker.tools import bulk
from harness_worker.tools.call import Ended, PendingCall, ToolScope
from harness_worker.tools.call_context import CallContext
from harness_worker.tools.children import start_or_join
from harness_worker.tools.faults import failed
from harness_worker.tools.need_input import asking, keep
from harness_worker.tools.validate import result_problems

_SHOWN_SCHEMA_CHARS: Final = 500
_STANDS: Final = (
    " The tool did run, and what it changed stands: do not call it again only for its result."
)


class _Bad(Exception):
    """A result that cannot be given to the model; `raw` is what is kept of it."""

    def __init__(self, cause: str, raw: bytes, media_type: str = "text/plain") -> None:
        super().__init__(cause)
        self.cause, self.raw, self.media_type = cause, raw, media_type


async def normalise(
    scope: ToolScope, ctx: CallContext, call: PendingCall, tool: Tool, value: ToolReturn
) -> Ended:
    """Make the stored result, or what the call waits for."""
    if isinstance(value, WaitUntil | AskUser | StartChild):
        return await _wait(scope, ctx, call, tool, value)
    if isinstance(value, NeedInput):
        kept = await keep(scope, call, value)
        return asking(call, kept, scope.clock() + timedelta(seconds=value.timeout_s))
    output = value if isinstance(value, ToolOutput) else ToolOutput(value)
    for item in output.artifacts:
        await ctx.artifact(item.name, item.media_type, item.data)
    try:
        text = _text(tool, output.content, scope.settings.tool.max_result_bytes)
    except _Bad as bad:
        return (await _bad_result(ctx, tool, bad)).changed(untrusted=output.untrusted)
    return await _store(scope, ctx, tool, text, output)


def waiting(wait: Wait) -> Ended:
    """Return a call that waits; the ledger keeps the kind in the place of the result."""
    return Ended(CallStatus.RUNNING, wait.kind, wait=wait)


def _text(tool: Tool, content: Json | bytes, limit_bytes: int) -> str:
    """Write a result as text, checked against what the tool promised; raises `_Bad`."""
    if isinstance(content, bytes | bytearray):
        raw = bytes(content)
        try:
            content = raw.decode()
        except UnicodeDecodeError as error:
            cause = f"its result is not UTF-8 (byte {error.start} of {len(raw)})"
            raise _Bad(cause, raw[:limit_bytes], "application/octet-stream") from error
    try:
        text = content if isinstance(content, str) else json_codec.dumps_text(content)
    except (TypeError, ValueError, RecursionError) as error:
        raw = repr(content)[:limit_bytes].encode(errors="replace")
        raise _Bad(f"its result is not JSON: {error}", raw) from error
    text = storable_text(text)
    if len(text) > limit_bytes or (size := len(text.encode())) > limit_bytes:
        size = len(text.encode())
        cause = f"its result has {size} bytes, and {limit_bytes} are allowed"
        raise _Bad(cause, text.encode()[:limit_bytes])
    if tool.spec.output_schema is not None:
        _check(tool, content, text)
    return text


def _check(tool: Tool, content: Json, text: str) -> None:
    schema = tool.spec.output_schema
    value: Json = content
    if isinstance(content, str) and not _may_be_text(schema):
        try:
            value = json.loads(content)
        except ValueError as error:
            raise _Bad(f"its result is not JSON: {error}", text.encode()) from error
    if problems := result_problems(tool.spec, value):
        raise _Bad(f"its result is not what it promises: {_listed(problems)}", text.encode())


def _may_be_text(schema: Json) -> bool:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind is None or "string" in ([kind] if isinstance(kind, str) else kind)


def _listed(problems: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"`{path}`: {cause}" for path, cause in problems)


async def _bad_result(ctx: CallContext, tool: Tool, bad: _Bad) -> Ended:
    """Keep what came as an artifact, and tell the model what was wrong and what was expected."""
    kept = await ctx.artifact(_name(ctx, "raw"), bad.media_type, bad.raw)
    cause = f"{bad.cause}. The raw result ({len(bad.raw)} bytes) is artifact {kept}."
    if tool.spec.output_schema is not None:
        expected = json_codec.dumps_text(tool.spec.output_schema)
        cut = "…" if len(expected) > _SHOWN_SCHEMA_CHARS else ""
        cause += f" Expected: {expected[:_SHOWN_SCHEMA_CHARS]}{cut}"
    if tool.spec.effect is not EffectClass.READ:
        cause += _STANDS
    return failed(tool.spec.name, "BAD_RESULT", cause)


async def _shown(scope: ToolScope, ctx: CallContext, text: str) -> str:
    """Return a result as it is shown: of what is too long, its beginning, which says so."""
    limit, raw = scope.inline_bytes, text.encode()
    if len(raw) <= limit:
        return text
    kept = await ctx.artifact(_name(ctx, "txt"), "text/plain", raw)
    return bulk.shown(text, kept, limit, can_read=bulk.READER in scope.allowed)


async def _bounded(scope: ToolScope, ctx: CallContext, ended: Ended) -> Ended:
    """Return how a child ended, with an output that fits."""
    if ended.status is not CallStatus.SUCCEEDED:
        return ended
    text = await _shown(scope, ctx, ended.content)
    return ended.changed(content=text, artifacts=tuple(ctx.artifacts))


async def _store(
    scope: ToolScope, ctx: CallContext, tool: Tool, text: str, output: ToolOutput
) -> Ended:
    if tool.spec.name == bulk.READER and len(text.encode()) > scope.inline_bytes:
        text = bulk.too_much(text, scope.inline_bytes)
    elif (shown := await _shown(scope, ctx, text)) != text:
        text = shown
    elif output.artifacts:
        names = ", ".join(
            f"{i.name} = {a}" for i, a in zip(output.artifacts, ctx.artifacts, strict=False)
        )
        text = f"{text}\n[artifacts: {names}]"
    return Ended(
        CallStatus.SUCCEEDED, text, None, tuple(ctx.artifacts), output.cost_usd,
        untrusted=output.untrusted,
    )  # fmt: skip


def _name(ctx: CallContext, kind: str) -> str:
    return "result-" + ".".join(ctx.call_id.split(".")[1:]) + f".{kind}"


async def _wait(
    scope: ToolScope,
    ctx: CallContext,
    call: PendingCall,
    tool: Tool,
    value: WaitUntil | AskUser | StartChild,
) -> Ended:
    """Return what the call waits for. A time that was set before stays: waking early for another
    call of the step does not prolong it.
    """
    now, before = scope.clock(), call.waits_until
    kept = before if before is not None and before > now else None
    if isinstance(value, WaitUntil):
        return waiting(Wait(call.index, "time", kept or value.at))
    if tool.spec.effect is EffectClass.WRITE:
        cause = "a tool whose effect is write can neither ask nor start a child." + _STANDS
        return failed(tool.spec.name, "BAD_RESULT", cause)
    if isinstance(value, StartChild):
        return await _bounded(scope, ctx, await start_or_join(scope, call, value))
    until = kept
    if until is None and value.timeout_s is not None:
        until = now + timedelta(seconds=value.timeout_s)
    if before is not None and before <= now and call.row["result"] == "input":
        return failed(tool.spec.name, "INPUT_TIMEOUT", "nobody answered in time")
    about = {"question": value.question, "choices": list(value.choices)}
    return waiting(Wait(call.index, "input", until, about))
