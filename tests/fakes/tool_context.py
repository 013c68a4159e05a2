"""A tool context in memory, for tests that call a tool's function directly."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from harness_common.contracts.memory import Memory
from harness_common.contracts.tool import Tool
from harness_common.core.errors import NotFound
from harness_common.core.message import Json

NOW = datetime(2024, 5, 31, 8, 0, tzinfo=UTC)


@dataclass
class FakeContext:
    """Answers as the runner's context does, and keeps what the tool said."""

    tenant_id: str = f"ten_{1:032x}"
    run_id: str = "run_1"
    session_id: str = "sess_1"
    call_id: str = "call_1"
    idempotency_key: str = "key_1"
    attempt: int = 1
    now: datetime = NOW
    resumed: datetime | None = None
    state: Json = None
    answer: str | None = None
    config: Mapping[str, Json] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    said: list[tuple[str, float | None]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def memory(self) -> Memory:
        raise NotFound("this test has no memory")

    async def skill(self, name: str, document: str | None = None) -> Json:
        raise NotFound(f"this test has no skill {name}: {document}")

    async def secret(self, name: str) -> str:
        if name not in self.secrets:
            raise NotFound(f"there is no secret {name}", code="SECRET_NOT_FOUND")
        return self.secrets[name]

    async def progress(self, message: str, fraction: float | None = None) -> None:
        self.said.append((message, fraction))

    async def artifact(self, name: str, media_type: str, data: bytes) -> str:
        del name, media_type
        artifact_id = f"art_{len(self.artifacts):032x}"
        self.artifacts[artifact_id] = data
        return artifact_id

    async def read_artifact(self, artifact_id: str) -> bytes:
        if artifact_id not in self.artifacts:
            raise NotFound(f"there is no artifact {artifact_id}")
        return self.artifacts[artifact_id]


async def acall(tool: Tool, ctx: FakeContext | None = None, /, **arguments: Json) -> Json:
    """Call a tool as the runner does; a sync one in a thread."""
    context = ctx or FakeContext()
    if inspect.iscoroutinefunction(tool.fn):
        return await tool.fn(context, **arguments)
    return await asyncio.to_thread(lambda: tool.fn(context, **arguments))


def call(tool: Tool, ctx: FakeContext | None = None, /, **arguments: Json) -> Json:
    """Call a tool from a test that has no loop."""
    return asyncio.run(acall(tool, ctx, **arguments))
