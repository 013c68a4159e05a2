"""What a running tool is given: who it works for, how to report, where to keep bytes."""

from __future__ import annotations

import time
from typing import Final

from harness_common.contracts.tool import Tool
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.artifacts import read_artifact, save_artifact
from harness_worker.tools.call import PendingCall, ToolScope

_PROGRESS_EVERY_S: Final = 1.0


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
        resumed = call.resume_at is not None and call.resume_at <= scope.clock()
        self.resumed = call.resume_at if resumed else None
        self.state: Json = call.kept["state"] if call.kept else None
        self.answer = call.answer
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
