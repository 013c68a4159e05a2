"""Events that a call writes while its step goes on: what it tries, what it does without."""

from __future__ import annotations

import structlog

from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_json
from harness_worker.tools.call import ToolScope

log = structlog.get_logger()


async def write_event(scope: ToolScope, name: str, payload: dict[str, Json]) -> None:
    """Add an event to the run, as its owner; lost when the claim is lost. Raises
    `DatabaseUnavailable`.
    """
    async with scope.db.connection() as conn:
        key = await writing_key(conn, scope.run.tenant_id, scope.db.timeout_s)
        event = {
            "tenant_id": scope.run.tenant_id,
            "run_id": scope.run.id,
            "fence": scope.run.fence,
            "claim_id": scope.run.claim_id,
            "type": name,
            "step": scope.step,
            "payload": json_codec.dumps_text(seal_json(key, payload)),
        }
        await run_sql(conn, "event_append", event, scope.db.timeout_s)


async def note(scope: ToolScope, name: str, payload: dict[str, Json]) -> None:
    """Tell of a fault at once; that it cannot be told must not become another fault."""
    try:
        await write_event(scope, name, payload)
    except DatabaseUnavailable as error:
        log.warning("tool.event_not_written", type=name, error=str(error))
