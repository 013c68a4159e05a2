"""The ledger of tool calls: intents, results, and what is given up as unknown.

Each call here is one small commit of its own. The intent is written under the ownership check and
only if no cancel was asked (INV3, INV9); result and "unknown" are compare-and-set on the attempt:
the first wins.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from harness_common.contracts.tool import Tool
from harness_common.core.approval import digest
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import TenantKey, seal_json_text, seal_parts, seal_text
from harness_worker.tools.call import CancelAsked, PendingCall, ToolScope

_RECORD_PATIENCE_S: Final = 60.0
"""How long a known result is tried to be recorded while Postgres is away."""


class Ledger:
    """The ledger rows of one tools step."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope
        self._db = scope.db

    async def intend(self, call: PendingCall, tool: Tool, attempt_id: UUID) -> None:
        """Commit the intent: only while this claim owns the run and no cancel was asked."""
        scope = self._scope
        async with scope.db.connection() as conn:
            key = await writing_key(conn, scope.run.tenant_id, scope.db.timeout_s)
            params = self._intent_params(call, tool, attempt_id, key)
            rows = await run_sql(conn, "call_intent", params, scope.db.timeout_s)
        if not rows:
            raise CancelAsked

    def _intent_params(
        self, call: PendingCall, tool: Tool, attempt_id: UUID, key: TenantKey | None
    ) -> dict[str, Any]:
        scope, edited = self._scope, call.changed_arguments()
        ran = None if edited is None else seal_json_text(key, json_codec.dumps_text(edited))
        return scope.key(call.index) | {
            "version": scope.run.version,
            "fence": scope.run.fence,
            "claim_id": scope.run.claim_id,
            "attempt_id": attempt_id,
            "prior_attempt_id": call.attempt_id,
            "from_status": [str(call.status)],
            "effect": str(tool.spec.effect),
            "tool_version": tool.spec.version,
            "policy": None if call.policy is None else json_codec.dumps_text(call.policy),
            "fingerprint": fingerprint(scope.run.tenant_id, tool, call.arguments),
            "ran_arguments": ran,
            "served_by": None if tool.spec.name == call.name else tool.spec.name,
            "approval_id": call.approval_id,
            "approval_digest": digest(call.name, call.arguments) if call.approval_id else None,
            "payload": json_codec.dumps_text(
                {"call": f"{scope.step}.{call.index}", "tool": tool.spec.name} | {"effect": "write"}
            ),
        }

    async def record(self, attempt_id: UUID, outcome: CallOutcome) -> bool:
        """Commit the result, first writer wins; False if the attempt was declared unknown."""
        give_up = time.monotonic() + _RECORD_PATIENCE_S
        params: dict[str, Any] | None = None  # made once: sealed again, it would look like another
        while True:
            try:
                async with self._db.connection() as conn:
                    if params is None:
                        key = await writing_key(conn, self._scope.run.tenant_id, self._db.timeout_s)
                        params = self._result_params(attempt_id, outcome, key)
                    rows = await run_sql(conn, "call_result", params, self._db.timeout_s)
            except DatabaseUnavailable:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.2)
                continue
            return bool(rows[0]["won"])

    def _result_params(
        self, attempt_id: UUID, outcome: CallOutcome, key: TenantKey | None
    ) -> dict[str, Any]:
        evidence = {"late_result": outcome.content[:2000], "status": str(outcome.status)}
        return self._scope.key(outcome.index) | {
            "attempt_id": attempt_id,
            "status": str(outcome.status),
            "result": seal_text(key, outcome.content),
            "error_type": outcome.error_type,
            "trust": outcome.trust,
            "artifacts": list(outcome.artifacts),
            "duration_ms": outcome.duration_ms,
            "cost_usd": outcome.cost_usd,
            "resume_at": outcome.resume_at,
            "evidence": json_codec.dumps_text(seal_parts(key, "evidence", evidence)),
        }

    async def give_up(
        self, call: PendingCall, attempt_id: UUID, status: CallStatus, why: str
    ) -> bool:
        """Close an attempt that will bring no result; False when its result came first."""
        rows = await self._db.fetch(
            "call_give_up",
            self._scope.key(call.index)
            | {"attempt_id": attempt_id, "status": str(status), "why": why},
        )
        return bool(rows)

    async def read(self, index: int) -> PendingCall:
        """Read a row as it is now."""
        row = await self._db.fetch_one("call_read", self._scope.key(index))
        assert row is not None
        return PendingCall.from_row(row["call"])

    async def cached(self, call: PendingCall, tool: Tool) -> CallOutcome | None:
        """Return the result of the same read that the session made lately, if there is one."""
        run = self._scope.run
        digest = fingerprint(run.tenant_id, tool, call.arguments)
        params = {"tenant_id": run.tenant_id, "session_id": run.session_id, "fingerprint": digest}
        row = await self._db.fetch_one("call_cached", params)
        if row is None:
            return None
        at: datetime = row["finished_at"]
        source = f"{encode('run', row['run_id'])}.{row['step']}.{row['idx']}"
        mark = f"[cached_from: {source}, of {at.isoformat(timespec='seconds')}]"
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=CallStatus.SUCCEEDED,
            content=f"{row['result'] or ''}\n{mark}",
            trust=row["trust"] or "trusted",
            artifacts=tuple(row["artifacts"] or ()),
            attempt=call.attempt,
            effect=str(tool.spec.effect),
            tool_version=tool.spec.version,
            fingerprint=digest,
            ran_arguments=call.changed_arguments(),
            cached_from=source,
        )


def fingerprint(tenant_id: UUID, tool: Tool, arguments: Json) -> str:
    """Digest who asks for what: principal, tool and version, canonical arguments."""
    body = [tenant_id.hex, tool.spec.name, tool.spec.version]
    return hashlib.sha256(orjson.dumps(body) + canonical(arguments)).hexdigest()


def canonical(arguments: Json) -> bytes:
    """Write arguments in one way, whether they come from the model or from the ledger: keys in
    order, and with what storage makes of odd values (NUL, NaN, huge integers).
    """
    stored = orjson.loads(json_codec.dumps(arguments))
    return orjson.dumps(stored, option=orjson.OPT_SORT_KEYS)
