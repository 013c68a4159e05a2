"""Runs one tool call in the fixed order: find, validate, ledger, attempt, normalise, persist.

The ledger decides what may happen again. A finished call is reused. A read or an idempotent call is
repeated with the same key. A `write` starts only after its intent is committed under the ownership
check, and an intent without a result becomes `unknown`: nothing is repeated by guessing (INV3).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import uuid4

import structlog

from harness_common.contracts.tool import (
    AskUser,
    EffectClass,
    NeedInput,
    Reach,
    StartChild,
    Tool,
    ToolOutput,
    ToolReturn,
    WaitUntil,
)
from harness_common.core.errors import (
    HarnessError,
    Invalid,
    LostOwnership,
    NotFound,
    Transient,
    UnknownOutcome,
)
from harness_common.core.message import Json
from harness_common.core.policy import Decision, Verdict
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.store import json_codec
from harness_common.store.db import DatabaseUnavailable
from harness_common.store.json_codec import storable_text
from harness_worker.tools.approvals import Approvals
from harness_worker.tools.call import CancelAsked, Ended, PendingCall, ToolScope
from harness_worker.tools.call_context import CallContext
from harness_worker.tools.children import ChildFailed, start_or_join
from harness_worker.tools.gate import Gate
from harness_worker.tools.ledger import Ledger
from harness_worker.tools.need_input import asking, keep, open_question
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.validate import validate_arguments

log = structlog.get_logger()

TIMEOUT_S: Final = {Reach.EXTERNAL: 10.0, Reach.INTERNAL: 30.0}


class ToolNotHere(Transient):
    """The agent declares a tool that this worker process does not have: another may."""

    code = "TOOL_NOT_HERE"


def declared_tool(registry: ToolRegistry, name: str) -> Tool:
    """Return a tool that an agent declares; `ToolNotHere` lets the step be tried elsewhere."""
    try:
        return registry.get(name)
    except NotFound as error:
        raise ToolNotHere(
            f"this worker has no tool {name!r}; start workers with `--tools` and its module",
            tool=name,
        ) from error


class ToolRunner:
    """Runs the calls of one step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope
        self._ledger = Ledger(scope)
        self._gate = Gate(scope)
        self._approvals = Approvals(scope)

    def is_write(self, call: PendingCall) -> bool:
        """Tell whether a call must not run beside others."""
        try:
            return self._tool(call).spec.effect is EffectClass.WRITE
        except (NotFound, ToolNotHere):
            return False

    async def run(self, call: PendingCall) -> CallOutcome:
        """Bring one call to an end (or to a wait) and return how it ended.

        Raises `CancelAsked` and `LostOwnership` when nothing more may be started.
        """
        if call.status in ENDED:
            return call.recorded()
        if call.status is CallStatus.UNKNOWN:
            return self._outcome(call, None, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        if call.is_dead_intent():
            return await self._unknown(call, "the process that started it is gone")
        try:
            tool = self._tool(call)
            validate_arguments(tool.spec, call.arguments)
        except ToolNotHere:
            raise
        except HarnessError as error:
            return self._outcome(call, None, _refused(call.name, error))
        decision = await self._gate.decide(call, tool)
        if decision.verdict is Verdict.DENY:
            return self._outcome(call, tool, _denied(tool.spec.name, decision))
        if decision.verdict is Verdict.ASK:
            answer = await self._approvals.seek(call, tool, decision)
            if isinstance(answer, Ended):
                return self._outcome(call, tool, answer)
            call = replace(call, arguments=answer.arguments)
        return await self._run_allowed(call, tool)

    async def _run_allowed(self, call: PendingCall, tool: Tool) -> CallOutcome:
        """Run a call that is valid and may be made."""
        if (question := open_question(call, self._scope.clock())) is not None:
            return self._outcome(call, tool, question)
        if tool.spec.effect is EffectClass.WRITE:
            if (
                call.answer is None
                and call.resume_at is not None
                and call.resume_at > self._scope.clock()
            ):
                return self._outcome(call, tool, _waiting(Wait(call.index, "time", call.resume_at)))
            return await self._run_write(call, tool)
        if self._scope.held.cancel_requested or self._scope.held.release_asked:
            raise CancelAsked
        ended = await self._attempt(call, tool)
        if ended.error_type in {"TIMEOUT", "TRANSIENT"} and tool.spec.effect is EffectClass.READ:
            ended = await self._attempt(call, tool)
        return self._outcome(call, tool, ended)

    def _tool(self, call: PendingCall) -> Tool:
        if call.name not in self._scope.allowed:
            known = ", ".join(self._scope.allowed) or "none"
            raise NotFound(
                f"there is no tool {call.name!r} here; the tools are: {known}",
                code="TOOL_NOT_FOUND",
            )
        return declared_tool(self._scope.registry, call.name)

    async def _run_write(self, call: PendingCall, tool: Tool) -> CallOutcome:
        """Run an effect at most once: intent first, result as soon as it is known."""
        scope, held = self._scope, self._scope.held
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        attempt_id, begun = uuid4(), False
        held.writing += 1
        try:
            await self._ledger.intend(call, tool, attempt_id)
            begun = True
            ended = await self._attempt(call, tool)
            ended = replace(ended, untrusted=_is_untrusted(tool, ended))
            won = await self._ledger.record(call, attempt_id, ended)
        except asyncio.CancelledError:
            # Say now what is known, rather than leave it to recovery: begun, the effect may have
            # happened.
            status = CallStatus.UNKNOWN if begun else CallStatus.CANCELLED
            await asyncio.shield(
                self._ledger.give_up(call, attempt_id, status, "interrupted by a cancel")
            )
            raise
        finally:
            held.writing -= 1
        if not won:
            raise LostOwnership(
                "the call's ledger row is another attempt's", run_id=str(scope.run.id)
            )
        return self._outcome(call, tool, ended, recorded=True)

    async def _unknown(self, call: PendingCall, why: str) -> CallOutcome:
        """Declare a dead owner's attempt unknown, unless its result arrived after all."""
        assert call.attempt_id is not None
        if await self._ledger.give_up(call, call.attempt_id, CallStatus.UNKNOWN, why):
            return self._outcome(call, None, Ended(CallStatus.UNKNOWN, ""), recorded=True)
        fresh = await self._ledger.read(call.index)
        if fresh.is_dead_intent():
            # Another attempt is under way since: it is its owner's, and not ours to judge.
            raise LostOwnership("another attempt is under way", run_id=str(self._scope.run.id))
        return await self.run(fresh)

    async def _attempt(self, call: PendingCall, tool: Tool) -> Ended:
        """Call the function within its timeout and make a value of whatever it does."""
        spec, begun = tool.spec, time.monotonic()
        limit_s = spec.timeout_s or TIMEOUT_S[spec.reach]
        ctx = CallContext(self._scope, call, tool)
        try:
            async with asyncio.timeout(limit_s):
                value = await self._call(tool, ctx, call.arguments)
            ended = await self._normalise(ctx, call, tool, value)
        except TimeoutError:
            ended = _failed(spec.name, "TIMEOUT", f"no result within {limit_s:g} s")
            if spec.effect is EffectClass.WRITE:
                ended = replace(ended, status=CallStatus.UNKNOWN)
        except UnknownOutcome as error:
            ended = _failed(spec.name, error.error_code, error.message, CallStatus.UNKNOWN)
        except (DatabaseUnavailable, ChildFailed):
            raise  # not the tool's own: nothing is known about the effect; the parent fails too
        except HarnessError as error:
            ended = _refused(spec.name, error)
        except Exception as error:
            ended = _failed(spec.name, type(error).__name__, str(error)[:2000])
            if spec.effect is EffectClass.WRITE:
                # Nobody named it, so nobody knows whether the effect happened before it was raised.
                ended = replace(ended, status=CallStatus.UNKNOWN)
            log.warning("tool.raised", tool=spec.name, call=ctx.call_id, exc_info=error)
        return replace(
            ended,
            artifacts=tuple(ctx.artifacts),
            duration_ms=(time.monotonic() - begun) * 1000,
        )

    async def _call(self, tool: Tool, ctx: CallContext, arguments: Json) -> ToolReturn:
        try:
            if inspect.iscoroutinefunction(tool.fn):
                return await tool.fn(ctx, **arguments)
            value = await self._scope.threads.run(lambda: tool.fn(ctx, **arguments))
            return await value if inspect.isawaitable(value) else value
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # A tool's exit is an answer for the model, not the end of the worker's event loop.
            raise RuntimeError(f"the tool raised {type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            if _is_cancelling():
                raise
            raise RuntimeError("the tool was cancelled from within") from error

    async def _normalise(
        self, ctx: CallContext, call: PendingCall, tool: Tool, value: ToolReturn
    ) -> Ended:
        """Make the stored result: text for the model, artifacts for what is bulky; or what the call
        waits for.
        """
        if isinstance(value, WaitUntil | AskUser | StartChild):
            return await self._wait(call, tool, value)
        if isinstance(value, NeedInput):
            kept = await keep(self._scope, call, value)
            return asking(call, kept, self._scope.clock() + timedelta(seconds=value.timeout_s))
        return await self._store(ctx, value)

    async def _wait(
        self, call: PendingCall, tool: Tool, value: WaitUntil | AskUser | StartChild
    ) -> Ended:
        """Return what the call waits for. A time that was set before stays: waking early for
        another call of the step does not prolong it.
        """
        now, before = self._scope.clock(), call.resume_at
        kept = before if before is not None and before > now else None
        if isinstance(value, WaitUntil):
            return _waiting(Wait(call.index, "time", kept or value.at))
        if tool.spec.effect is EffectClass.WRITE:
            raise Invalid(
                "a tool whose effect is write can neither ask nor start a child", code="BAD_RESULT"
            )
        if isinstance(value, StartChild):
            return await start_or_join(self._scope, call, value)
        until = kept
        if until is None and value.timeout_s is not None:
            until = now + timedelta(seconds=value.timeout_s)
        if before is not None and before <= now and call.row["result"] == "input":
            return _failed(tool.spec.name, "INPUT_TIMEOUT", "nobody answered in time")
        about = {"question": value.question, "choices": list(value.choices)}
        return _waiting(Wait(call.index, "input", until, about))

    async def _store(self, ctx: CallContext, value: Json) -> Ended:
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        for item in output.artifacts:
            await ctx.artifact(item.name, item.media_type, item.data)
        text = output.content if isinstance(output.content, str) else _dump(output.content)
        text = storable_text(text)
        limit = self._scope.settings.tool.inline_result_bytes
        raw = text.encode()
        if len(raw) > limit:
            kept = await ctx.artifact(f"{self._call_name(ctx)}.txt", "text/plain", raw)
            head = raw[:limit].decode(errors="ignore")
            text = (
                f"{head}\n[cut at {limit} of {len(raw)} bytes; the whole result is artifact "
                f"{kept}, read it with artifact_read]"
            )
        elif output.artifacts:
            names = ", ".join(
                f"{i.name} = {a}" for i, a in zip(output.artifacts, ctx.artifacts, strict=False)
            )
            text = f"{text}\n[artifacts: {names}]"
        return Ended(CallStatus.SUCCEEDED, text, None, tuple(ctx.artifacts), output.cost_usd)

    @staticmethod
    def _call_name(ctx: CallContext) -> str:
        return "result-" + ".".join(ctx.call_id.split(".")[1:])

    def _outcome(
        self, call: PendingCall, tool: Tool | None, ended: Ended, *, recorded: bool = False
    ) -> CallOutcome:
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=ended.status,
            content=ended.content,
            error_type=ended.error_type,
            trust="untrusted" if _is_untrusted(tool, ended) else "trusted",
            duration_ms=ended.duration_ms,
            cost_usd=ended.cost_usd,
            input_tokens=ended.input_tokens,
            output_tokens=ended.output_tokens,
            artifacts=ended.artifacts,
            attempt=call.attempt + 1,
            effect=str(tool.spec.effect) if tool else None,
            tool_version=tool.spec.version if tool else None,
            resume_at=ended.resume_at,
            wait=ended.wait,
            recorded=recorded,
        )


def _is_untrusted(tool: Tool | None, ended: Ended) -> bool:
    return ended.untrusted or (tool is not None and tool.spec.untrusted_output)


def _is_cancelling() -> bool:
    """Tell whether somebody asked the current task to stop (a cancel, a stop, a timeout)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _dump(value: Json) -> str:
    try:
        return json_codec.dumps_text(value)
    except TypeError as error:
        raise Invalid(
            f"the tool returned a value that is not JSON: {error}", code="BAD_RESULT"
        ) from error


def _refused(name: str, error: HarnessError) -> Ended:
    kind = "TRANSIENT" if isinstance(error, Transient) else error.error_code
    status = CallStatus.REJECTED if isinstance(error, Invalid) else CallStatus.FAILED
    return _failed(name, kind, error.message, status)


def _denied(name: str, decision: Decision) -> Ended:
    why = "; ".join(decision.reasons) or "policy does not allow it"
    return _failed(name, "PERMISSION_DENIED", f"E403: {why}", CallStatus.REJECTED)


def _waiting(wait: Wait) -> Ended:
    """Return a call that waits; the ledger keeps the kind in the place of the result."""
    return Ended(CallStatus.RUNNING, wait.kind, wait=wait)


def _failed(
    name: str, error_type: str, cause: str, status: CallStatus = CallStatus.FAILED
) -> Ended:
    """Word a failure for the model: which tool, what kind, why, and to think again."""
    text = f"Tool {name} failed ({error_type}): {cause}\nReconsider the call before trying again."
    return Ended(status, storable_text(text), error_type)
