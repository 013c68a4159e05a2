"""Ids in paths, read into what the store knows."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path

from harness_common.core.ids import PREFIXES, decode


def _reader(kind: str, name: str) -> object:
    pattern = f"^{PREFIXES[kind]}[0-9a-f]{{32}}$"

    async def read(
        text: Annotated[str, Path(alias=name, json_schema_extra={"pattern": pattern})],
    ) -> UUID:
        return decode(kind, text)

    # Annotations of a nested function are not resolved in this module's scope.
    read.__annotations__ = {
        "text": Annotated[str, Path(alias=name, json_schema_extra={"pattern": pattern})],
        "return": UUID,
    }
    return Depends(read)


RunId = Annotated[UUID, _reader("run", "run_id")]
SessionId = Annotated[UUID, _reader("session", "session_id")]
ArtifactId = Annotated[UUID, _reader("artifact", "artifact_id")]
WebhookId = Annotated[UUID, _reader("webhook", "webhook_id")]
DeliveryId = Annotated[UUID, _reader("delivery", "delivery_id")]
MemoryId = Annotated[UUID, _reader("memory", "memory_id")]
ErasureId = Annotated[UUID, _reader("erasure", "erasure_id")]
TenantId = Annotated[UUID, _reader("tenant", "tenant_id")]
WorkerId = Annotated[UUID, _reader("worker", "worker_id")]
KeyId = Annotated[UUID, _reader("api_key", "key_id")]
