"""Keeping what prompts are made of besides messages, once each: system texts and tool definitions.

A prompt itself is never stored: the event of its step names these parts by digest, and the messages
are there anyway (`store.context_reads` puts them together again).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import orjson

from harness_common.contracts.model import ToolDef
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.db import Database
from harness_common.store.keyring import writing_key_of
from harness_common.store.sealed import seal_json
from harness_worker.context.memory import ContextMemory

_DIGEST_CHARS: Final = 32


def system_part(system: str) -> Json:
    """Write a system text as it is stored."""
    return {"system": system}


def tools_part(tools: Sequence[ToolDef]) -> Json:
    """Write tool definitions as they are stored."""
    return {
        "tools": [
            {"name": t.name, "description": t.description, "input_schema": t.input_schema}
            for t in tools
        ]
    }


async def keep_part(
    db: Database, memory: ContextMemory, tenant_id: UUID, part: Json, run_id: UUID | None = None
) -> str:
    """Store a part unless it is stored already; returns its digest. Safe to repeat.

    One that holds what only this run knows (`run_id`) is the run's own, and goes with it.
    """
    if run_id is not None:
        part = {**part, "run": run_id.hex}
    digest = hashlib.sha256(_bytes(part)).hexdigest()[:_DIGEST_CHARS]
    if memory.is_stored(tenant_id, digest):
        return digest
    key = await writing_key_of(db, tenant_id)
    body = json_codec.dumps_text(seal_json(key, part))
    params = {"tenant_id": tenant_id, "digest": digest, "body": body, "run_id": run_id}
    await db.fetch("context_part_put", params)
    memory.note_stored(tenant_id, digest)
    return digest


def _bytes(part: Json) -> bytes:
    try:
        return orjson.dumps(part)
    except TypeError:  # an integer beyond 64 bits in a schema
        return repr(part).encode()
