"""The ledger of tool calls: intents, results, and what is given up as unknown.

Each call here is one small commit of its own. The intent is written under the ownership check and
only if no cancel was asked (INV3, INV9); result and "unknown" are compare-and-set on the attempt:
the first wins.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any, Final
from uuid import UUID

import orjson

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.db import DatabaseUnavailable
from harness_worker.tools.call import CancelAsked, Ended, PendingCall, ToolScope

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

    async def record(self, call: PendingCall, attempt_id: UUID, ended: Ended) -> bool:
        """Commit the result, first writer wins; False if the attempt was declared unknown."""
        params = self._result_params(call, attempt_id, ended)
        give_up = time.monotonic() + _RECORD_PATIENCE_S
        while True:
            try:
                rows = await self._db.fetch("call_result", params)
            except DatabaseUnavailable:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.2)
                continue
            return bool(rows[0]["won"])

    def _result_params(self, call: PendingCall, attempt_id: UUID, ended: Ended) -> dict[str, Any]:
        return self._scope.key(call.index) | {
            "attempt_id": attempt_id,
            "status": str(ended.status),
            "result": ended.content,
            "error_type": ended.error_type,
            "trust": "untrusted" if ended.untrusted else "trusted",
            "artifacts": list(ended.artifacts),
            "duration_ms": ended.duration_ms,
            "cost_usd": ended.cost_usd,
            "resume_at": ended.resume_at,
            "evidence": json_codec.dumps_text(
                {"late_result": ended.content[:2000], "status": str(ended.status)}
            ),
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


def fingerprint(tenant_id: UUID, tool: Tool, arguments: Json) -> str:
    """Digest who asks for what: principal, tool and version, canonical arguments."""
    body = orjson.dumps(
        [tenant_id.hex, tool.spec.name, tool.spec.version, arguments], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(body).hexdigest()
