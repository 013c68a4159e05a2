"""Runs one tool call in the fixed order: find, validate, ledger, attempt, normalise, persist.

The ledger decides what may happen again. A finished call is reused. A read or an idempotent call is repeated with the same key.
A `write` starts only after its intent is committed under the ownership check, and an intent without a result becomes `unknown`:
nothing is repeated by guessing (INV3).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import orjson
import structlog

from harness_common.contracts.blob import Blobs
from harness_common.contracts.tool import EffectClass, Reach, Tool, ToolOutput, WaitUntil
from harness_common.coord.live import LiveStream
from harness_common.core.errors import HarnessError, Invalid, LostOwnership, NotFound, Transient
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.settings import Settings
from harness_common.store import json_codec
from harness_common.store.artifacts import read_artifact, save_artifact
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.threads import ToolThreads
from harness_worker.tools.validate import validate_arguments

log = structlog.get_logger()

TIMEOUT_S: Final = {Reach.EXTERNAL: 10.0, Reach.INTERNAL: 30.0}
_PROGRESS_EVERY_S: Final = 1.0


class CancelAsked(Exception):  # noqa: N818 - a signal, not an error
    """The intent was refused because a cancel was asked: nothing more is started."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A ledger row as read at the start of the step."""

    index: int
    tool_use_id: str
    name: str
    arguments: Json
    status: CallStatus
    attempt: int
    attempt_id: UUID | None
    resume_at: datetime | None
    row: dict[str, Any]

    @staticmethod
    def from_row(row: dict[str, Any]) -> PendingCall:
        """Read a row of `tool_calls` (as JSON from `load.sql`)."""
        return PendingCall(
            row["idx"],
            row["tool_use_id"],
            row["name"],
            row["arguments"],
            CallStatus(row["status"]),
            row["attempt"],
            UUID(row["attempt_id"]) if row["attempt_id"] else None,
            datetime.fromisoformat(row["resume_at"]) if row["resume_at"] else None,
            row,
        )

    def recorded(self) -> CallOutcome:
        """Return the result that the ledger already holds."""
        row = self.row
        return CallOutcome(
            index=self.index,
            tool_use_id=self.tool_use_id,
            name=self.name,
            status=self.status,
            content=row["result"] or "",
            error_type=row["error_type"],
            trust=row["trust"] or "trusted",
            duration_ms=row["duration_ms"] or 0.0,
            cost_usd=row["cost_usd"] or 0.0,
            artifacts=tuple(row["artifacts"] or ()),
            attempt=self.attempt,
            effect=row["effect"],
            tool_version=row["tool_version"],
            recorded=True,
        )


class HeldRun(Protocol):
    """What the runner needs of the worker's hold on the run (see `runtime.Held`)."""

    writing: int
    cancel_requested: bool
    release_asked: bool


@dataclass(frozen=True, slots=True)
class ToolScope:
    """One tools step as the runner sees it."""

    db: Database
    blobs: Blobs
    registry: ToolRegistry
    settings: Settings
    clock: Callable[[], datetime]
    threads: ToolThreads
    run: StoredRun
    allowed: tuple[str, ...]
    step: int
    started_at: datetime
    held: HeldRun
    live: LiveStream

    def key(self, index: int) -> dict[str, Any]:
        """Name a ledger row."""
        return {
            "tenant_id": self.run.tenant_id,
            "run_id": self.run.id,
            "step": self.step,
            "idx": index,
        }


class CallContext:
    """The `ToolContext` that a tool is given."""

    def __init__(self, scope: ToolScope, call: PendingCall, tool: Tool) -> None:
        self.tenant_id = encode("tenant", scope.run.tenant_id)
        self.run_id = encode("run", scope.run.id)
        self.session_id = encode("session", scope.run.session_id)
        self.call_id = f"{self.run_id}.{scope.step}.{call.index}"
        self.idempotency_key = self.call_id
        self.attempt = call.attempt + 1
        self.now = scope.started_at
        self.resumed = call.resume_at
        self.config: dict[str, Json] = {}
        self.artifacts: list[str] = []
        self._scope, self._call, self._tool = scope, call, tool
        self._last_progress = 0.0

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Record how far the tool is: live at once, durable at most once a second."""
        scope = self._scope
        payload = {
            "call": f"{scope.step}.{self._call.index}",
            "tool": self._tool.spec.name,
            "message": message[:500],
            "fraction": fraction,
        }
        scope.live.emit(scope.run.id, {"type": "tool.progress", "step": scope.step, **payload})
        if time.monotonic() - self._last_progress < _PROGRESS_EVERY_S:
            return
        self._last_progress = time.monotonic()
        await scope.db.fetch(
            "event_append",
            {
                "tenant_id": scope.run.tenant_id,
                "run_id": scope.run.id,
                "fence": scope.run.fence,
                "claim_id": scope.run.claim_id,
                "type": "tool.progress",
                "step": scope.step,
                "payload": json_codec.dumps_text(payload),
            },
        )

    async def artifact(self, name: str, media_type: str, data: bytes) -> str:
        """Keep bytes and return their artifact id."""
        scope = self._scope
        made = await save_artifact(
            scope.db, scope.blobs, scope.run.tenant_id, scope.run.id,
            name=name, media_type=media_type, data=data,
        )  # fmt: skip
        self.artifacts.append(made)
        return made

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return an artifact of the same tenant."""
        scope = self._scope
        _, data = await read_artifact(scope.db, scope.blobs, scope.run.tenant_id, artifact_id)
        return data


@dataclass(frozen=True, slots=True)
class _Ended:
    """How an attempt ended, before it becomes an outcome."""

    status: CallStatus
    content: str
    error_type: str | None = None
    artifacts: tuple[str, ...] = ()
    cost_usd: float = 0.0
    duration_ms: float = 0.0
    resume_at: datetime | None = None


class ToolRunner:
    """Runs the calls of one step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope

    def is_write(self, call: PendingCall) -> bool:
        """Tell whether a call must not run beside others."""
        try:
            return self._tool(call).spec.effect is EffectClass.WRITE
        except NotFound:
            return False

    async def run(self, call: PendingCall) -> CallOutcome:
        """Bring one call to an end (or to a wait) and return how it ended.

        Raises `CancelAsked` and `LostOwnership` when nothing more may be started.
        """
        if call.status in ENDED:
            return call.recorded()
        if call.status is CallStatus.UNKNOWN:
            return self._outcome(call, None, _Ended(CallStatus.UNKNOWN, ""), recorded=True)
        try:
            tool = self._tool(call)
            validate_arguments(tool.spec, call.arguments)
        except HarnessError as error:
            return self._outcome(call, None, _refused(call.name, error))
        if call.resume_at is not None and call.resume_at > self._scope.clock():
            ended = _Ended(CallStatus.RUNNING, "", resume_at=call.resume_at)
            return self._outcome(call, tool, ended)
        if tool.spec.effect is EffectClass.WRITE:
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
                f"there is no tool {call.name!r} here; the tools are: {known}", code="TOOL_NOT_FOUND"
            )
        return self._scope.registry.get(call.name)

    async def _run_write(self, call: PendingCall, tool: Tool) -> CallOutcome:
        """Run an effect at most once: intent first, result at once, unknown when the intent is a dead owner's."""
        scope, held = self._scope, self._scope.held
        if call.status is CallStatus.RUNNING and call.resume_at is None:
            return await self._unknown(call, tool, "the process that started it is gone")
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        attempt_id, begun = uuid4(), False
        held.writing += 1
        try:
            await self._intend(call, tool, attempt_id)
            begun = True
            ended = await self._attempt(call, tool)
            won = await self._record(call, attempt_id, ended)
        except asyncio.CancelledError:
            # Say now what is known, rather than leave it to recovery: begun, the effect may have happened.
            status = CallStatus.UNKNOWN if begun else CallStatus.CANCELLED
            await asyncio.shield(self._give_up(call, attempt_id, status, "interrupted by a cancel"))
            raise
        finally:
            held.writing -= 1
        if not won:
            raise LostOwnership("the call's ledger row is another attempt's", run_id=str(scope.run.id))
        return self._outcome(call, tool, ended, recorded=True)

    async def _intend(self, call: PendingCall, tool: Tool, attempt_id: UUID) -> None:
        """Commit the intent: only while this claim owns the run and no cancel was asked."""
        scope = self._scope
        rows = await scope.db.fetch(
            "call_intent",
            scope.key(call.index)
            | {
                "version": scope.run.version,
                "fence": scope.run.fence,
                "claim_id": scope.run.claim_id,
                "attempt_id": attempt_id,
                "prior_attempt_id": call.attempt_id,
                "from_status": [str(call.status)],
                "effect": str(tool.spec.effect),
                "tool_version": tool.spec.version,
                "fingerprint": fingerprint(scope.run.tenant_id, tool, call.arguments),
                "payload": json_codec.dumps_text(
                    {"call": f"{scope.step}.{call.index}", "tool": call.name, "effect": "write"}
                ),
            },
        )
        if not rows:
            raise CancelAsked

    async def _record(self, call: PendingCall, attempt_id: UUID, ended: _Ended) -> bool:
        """Commit the result, first writer wins. False when the attempt was declared unknown before."""
        rows = await self._scope.db.fetch(
            "call_result",
            self._scope.key(call.index)
            | {
                "attempt_id": attempt_id,
                "status": str(ended.status),
                "result": ended.content,
                "error_type": ended.error_type,
                "trust": "trusted",
                "artifacts": list(ended.artifacts),
                "duration_ms": ended.duration_ms,
                "cost_usd": ended.cost_usd,
                "resume_at": ended.resume_at,
                "evidence": json_codec.dumps_text(
                    {"late_result": ended.content[:2000], "status": str(ended.status)}
                ),
            },
        )
        return bool(rows[0]["won"])

    async def _give_up(
        self, call: PendingCall, attempt_id: UUID, status: CallStatus, why: str
    ) -> bool:
        rows = await self._scope.db.fetch(
            "call_give_up",
            self._scope.key(call.index)
            | {"attempt_id": attempt_id, "status": str(status), "why": why},
        )
        return bool(rows)

    async def _unknown(self, call: PendingCall, tool: Tool, why: str) -> CallOutcome:
        """Declare a dead owner's attempt unknown, unless its result arrived after all."""
        assert call.attempt_id is not None
        if await self._give_up(call, call.attempt_id, CallStatus.UNKNOWN, why):
            return self._outcome(call, tool, _Ended(CallStatus.UNKNOWN, ""), recorded=True)
        row = await self._scope.db.fetch_one("call_read", self._scope.key(call.index))
        assert row is not None
        return await self.run(PendingCall.from_row(row["call"]))

    async def _attempt(self, call: PendingCall, tool: Tool) -> _Ended:
        """Call the function within its timeout and make a value of whatever it does."""
        spec, begun = tool.spec, time.monotonic()
        limit_s = spec.timeout_s or TIMEOUT_S[spec.reach]
        ctx = CallContext(self._scope, call, tool)
        try:
            async with asyncio.timeout(limit_s):
                value = await self._call(tool, ctx, call.arguments)
            ended = await self._normalise(ctx, value)
        except TimeoutError:
            ended = _failed(spec.name, "TIMEOUT", f"no result within {limit_s:g} s")
        except HarnessError as error:
            ended = _refused(spec.name, error)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is an answer for the model
            ended = _failed(spec.name, type(error).__name__, str(error)[:2000])
            log.info("tool.raised", tool=spec.name, error_type=type(error).__name__)
        return _Ended(
            ended.status,
            ended.content,
            ended.error_type,
            ended.artifacts or tuple(ctx.artifacts),
            ended.cost_usd,
            (time.monotonic() - begun) * 1000,
            ended.resume_at,
        )

    async def _call(self, tool: Tool, ctx: CallContext, arguments: Json) -> Any:
        if inspect.iscoroutinefunction(tool.fn):
            return await tool.fn(ctx, **arguments)
        value = await self._scope.threads.run(lambda: tool.fn(ctx, **arguments))
        return await value if inspect.isawaitable(value) else value

    async def _normalise(self, ctx: CallContext, value: Any) -> _Ended:
        """Make the stored result: text for the model, artifacts for what is bulky."""
        if isinstance(value, WaitUntil):
            return _Ended(CallStatus.RUNNING, "", resume_at=value.at)
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        for item in output.artifacts:
            await ctx.artifact(item.name, item.media_type, item.data)
        text = output.content if isinstance(output.content, str) else _dump(output.content)
        text = text.replace("\x00", "")
        limit = self._scope.settings.tool.inline_result_bytes
        raw = text.encode()
        if len(raw) > limit:
            kept = await ctx.artifact(f"{self._call_name(ctx)}.txt", "text/plain", raw)
            head = raw[:limit].decode(errors="ignore")
            text = (
                f"{head}\n[cut at {limit} of {len(raw)} bytes; the whole result is artifact {kept}, "
                "read it with artifact_read]"
            )
        elif output.artifacts:
            names = ", ".join(
                f"{i.name} = {a}" for i, a in zip(output.artifacts, ctx.artifacts, strict=False)
            )
            text = f"{text}\n[artifacts: {names}]"
        return _Ended(
            CallStatus.SUCCEEDED, text, None, tuple(ctx.artifacts), output.cost_usd
        )

    @staticmethod
    def _call_name(ctx: CallContext) -> str:
        return "result-" + ".".join(ctx.call_id.split(".")[1:])

    def _outcome(
        self, call: PendingCall, tool: Tool | None, ended: _Ended, *, recorded: bool = False
    ) -> CallOutcome:
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=ended.status,
            content=ended.content,
            error_type=ended.error_type,
            trust="untrusted" if tool and tool.spec.untrusted_output else "trusted",
            duration_ms=ended.duration_ms,
            cost_usd=ended.cost_usd,
            artifacts=ended.artifacts,
            attempt=call.attempt + 1,
            effect=str(tool.spec.effect) if tool else None,
            tool_version=tool.spec.version if tool else None,
            resume_at=ended.resume_at,
            recorded=recorded,
        )


def fingerprint(tenant_id: UUID, tool: Tool, arguments: Json) -> str:
    """Digest who asks for what: principal, tool and version, canonical arguments."""
    body = orjson.dumps(
        [tenant_id.hex, tool.spec.name, tool.spec.version, arguments], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(body).hexdigest()


def _dump(value: Json) -> str:
    try:
        return json_codec.dumps_text(value)
    except TypeError as error:
        raise Invalid(f"the tool returned a value that is not JSON: {error}", code="BAD_RESULT") from error


def _refused(name: str, error: HarnessError) -> _Ended:
    kind = "TRANSIENT" if isinstance(error, Transient) else error.error_code
    status = CallStatus.REJECTED if isinstance(error, Invalid) else CallStatus.FAILED
    return _failed(name, kind, error.message, status)


def _failed(
    name: str, error_type: str, cause: str, status: CallStatus = CallStatus.FAILED
) -> _Ended:
    """Word a failure for the model: which tool, what kind, why, and to think again."""
    text = f"Tool {name} failed ({error_type}): {cause}\nReconsider the call before trying again."
    return _Ended(status, text.replace("\x00", ""), error_type)
