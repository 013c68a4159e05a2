"""Tells which tools a worker process has, for the API, which never loads them, to show."""

from __future__ import annotations

import dataclasses
import hashlib
from uuid import UUID

import orjson

from harness_common.contracts.tool import ToolSpec
from harness_common.core.message import Json
from harness_common.store.db import Database
from harness_worker.tools.registry import ToolRegistry


async def announce(db: Database, worker: UUID, registry: ToolRegistry) -> None:
    """Record the specifications of a registered worker's tools. Safe to repeat."""
    bodies = [
        orjson.dumps(spec_json(spec), option=orjson.OPT_SORT_KEYS) for spec in registry.specs()
    ]
    await db.fetch(
        "tools_announce",
        {
            "worker": worker,
            "digests": [hashlib.sha256(body).hexdigest() for body in bodies],
            "names": list(registry.names()),
            "specs": [body.decode() for body in bodies],
        },
    )


def spec_json(spec: ToolSpec) -> dict[str, Json]:
    """Write a specification as JSON."""
    plain = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return plain | {"permission_tags": sorted(spec.permission_tags)}
