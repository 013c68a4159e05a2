"""Looks at a server because somebody asked the API to: connect, list, record, say what is found."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

import structlog

from harness_common.core.errors import HarnessError
from harness_common.core.message import Json
from harness_common.redaction import redactor
from harness_common.store.db import Database
from harness_common.store.mcp_tools import Server, end_check, take_check
from harness_worker.mcp.pool import Pool

log = structlog.get_logger()
_SPARE_S: Final = 15.0


async def check(db: Database, pool: Pool, tenant_id: UUID, server_id: UUID) -> bool:
    """Take the wish to look at a server and fulfil it; False when another worker has it."""
    settings = pool.outside.settings
    taken = await take_check(db, tenant_id, server_id, settings.connect_s + _SPARE_S)
    if taken is None:
        return False
    server, asked = taken
    begun = time.monotonic()
    try:
        found = await _look(pool, server)
    except HarnessError as error:
        found = {"ok": False, "code": error.error_code, "error": error.message}
    except Exception as error:
        log.exception("mcp.check_failed", server=server.name)
        found = {"ok": False, "code": "ERROR", "error": f"{type(error).__name__}: {error!s:.300}"}
    if not found["ok"] and (said := pool.said.get(server.id)):
        found["stderr"] = said
    found["ms"] = round((time.monotonic() - begun) * 1000, 1)
    await end_check(db, server, asked, redactor.clean_json(tenant_id, found))
    return True


async def _look(pool: Pool, server: Server) -> dict[str, Json]:
    connection = await pool.look(server)
    try:
        client = connection.client
        info = client.server_info
        return {
            "ok": True,
            "protocol": client.protocol_version,
            "server": f"{info.name} {info.version}"[:200] if info else None,
            "tools": len(connection.hashes),
        }
    finally:
        connection.stop()
