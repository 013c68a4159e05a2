"""What a running tool is given: who it works for, how to report, where to keep bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from harness_common.contracts.tool import (
    AskUser,
    NeedInput,
    StartChild,
    Tool,
    ToolOutput,
    ToolReturn,
    WaitUntil,
)
from harness_common.core.errors import Denied, Permanent
from harness_common.core.events import TOOL_PROGRESS
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.redaction import redactor
from harness_common.store.artifacts import read_artifact, save_artifact
from harness_worker.memory.run_memory import CallMemory
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.notes import write_event
from harness_worker.tools.skill_text import skill_text

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
        self.config: Mapping[str, Json] = {}
        self.artifacts: list[str] = []
        self.queued = False
        """Whether the call waits for a thread or a cage: nothing of it was run."""
        self._scope, self._call, self._tool = scope, call, tool
        self._last_progress = 0.0

    def started(self) -> None:
        """Note that the call has its thread or its cage."""
        self.queued = False

    @property
    def memory(self) -> CallMemory:
        """What is remembered for the run's user; raises `Permanent` where there is no memory."""
        scope = self._scope
        if scope.memory is None:
            raise Permanent("there is no memory here", code="NO_MEMORY")
        policy = scope.policy
        return CallMemory(
            scope.memory, scope.step, self._call.index,
            policy.marks, self._call.approval_id, policy.facts.principal,
        )  # fmt: skip

    async def skill(self, name: str, document: str | None = None) -> Json:
        """Return the text of a skill of the run, or of one of its documents."""
        found = skill_text(self._scope.skills, name, document)
        if isinstance(found, dict):
            return found
        data = await self.read_artifact(found.artifact)
        return found.shown(data)

    async def secret(self, name: str) -> str:
        """Return a secret that the tool declares; raises `Denied` and `NotFound`."""
        spec = self._tool.spec
        if name not in spec.secrets:
            raise Denied(
                f"tool {spec.name} does not declare the secret {name!r}; its author has to add it "
                "to `secrets` of the tool",
                code="SECRET_NOT_DECLARED",
                secret=name,
            )
        return await self._scope.secrets.value(self._scope.run.tenant_id, name)

    def clean(self, text: str) -> str:
        """Blot out the tenant's secrets."""
        return redactor.clean(self._scope.run.tenant_id, text)

    def cleaned(self, value: ToolReturn) -> ToolReturn:
        """Blot out the tenant's secrets in whatever a tool returns."""
        tenant_id = self._scope.run.tenant_id
        if isinstance(value, AskUser):
            choices = tuple(map(self.clean, value.choices))
            return replace(value, question=self.clean(value.question), choices=choices)
        if isinstance(value, NeedInput):  # its state goes back as it came
            choices = tuple(map(self.clean, value.choices))
            return replace(value, question=self.clean(value.question), choices=choices)
        if isinstance(value, StartChild):
            return replace(value, input=self.clean(value.input))
        if isinstance(value, ToolOutput):
            return replace(value, content=redactor.clean_json(tenant_id, value.content))
        return value if isinstance(value, WaitUntil) else redactor.clean_json(tenant_id, value)

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Record how far the tool is: live at once, durable at most once a second."""
        scope = self._scope
        payload = {
            "call": f"{scope.step}.{self._call.index}",
            "tool": self._tool.spec.name,
            "message": self.clean(message)[:500],
            "fraction": fraction,
        }
        scope.live.emit(scope.run.id, {"type": "tool.progress", "step": scope.step, **payload})
        if time.monotonic() - self._last_progress < _PROGRESS_EVERY_S:
            return
        self._last_progress = time.monotonic()
        await write_event(scope, TOOL_PROGRESS, payload)

    async def artifact(self, name: str, media_type: str, data: bytes) -> str:
        """Keep bytes and return their artifact id."""
        scope = self._scope
        made = await save_artifact(
            scope.db, scope.blobs, scope.run.tenant_id, scope.run.id,
            name=self.clean(name), media_type=media_type,
            data=redactor.clean_bytes(scope.run.tenant_id, data),
        )  # fmt: skip
        self.artifacts.append(made)
        return made

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Return an artifact of the same tenant."""
        scope = self._scope
        _, data = await read_artifact(scope.db, scope.blobs, scope.run.tenant_id, artifact_id)
        return data
