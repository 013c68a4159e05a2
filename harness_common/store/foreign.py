"""What other frameworks keep of a run: bytes under keys that only they understand, compressed and
sealed. Written by workers; a run's rows by its owner alone.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import zstandard

from harness_common.core.errors import LostOwnership
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.keyring import writing_key
from harness_common.store.rows import StoredRun
from harness_common.store.sealed import seal_bytes, seal_json


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint, or the newest of a thread and namespace."""

    thread: str
    ns: str = ""
    checkpoint_id: str | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """A value as a framework writes it: the name of its encoding, and bytes."""

    kind: str
    data: bytes


class ForeignStore:
    """The checkpoints of one tenant. With an `owner`, writes are those of the run's present owner:
    they raise `LostOwnership` once it is another's.
    """

    def __init__(self, db: Database, tenant_id: UUID, owner: StoredRun | None = None) -> None:
        self._db, self._tenant_id, self._owner = db, tenant_id, owner

    async def put(
        self,
        place: Place,
        blob: Blob,
        meta: Json,
        *,
        parent_id: str | None = None,
        run_key: str | None = None,
    ) -> None:
        """Keep a checkpoint; one that is there already is replaced."""
        async with self._db.connection() as conn:
            key = await writing_key(conn, self._tenant_id, self._db.timeout_s)
            params = self._at(place) | {
                "parent_id": parent_id,
                "run_key": run_key,
                "kind": blob.kind,
                "snapshot": seal_bytes(key, zstandard.compress(blob.data), "snapshot"),
                "payload": json_codec.dumps_text(seal_json(key, meta)),
            }
            rows = await run_sql(conn, "foreign_put", params, self._db.timeout_s)
        if not rows:
            raise self._lost()

    async def put_writes(
        self, place: Place, task_id: str, path: str, writes: Sequence[tuple[int, str, Blob]]
    ) -> None:
        """Keep what a task gave: (index, channel, value)."""
        async with self._db.connection() as conn:
            key = await writing_key(conn, self._tenant_id, self._db.timeout_s)
            # Some channels have one slot: the last value of it counts.
            slots = {idx: (channel, blob) for idx, channel, blob in writes}
            rows = [
                {"idx": idx, "channel": channel, "kind": blob.kind, "data": _text(key, blob.data)}
                for idx, (channel, blob) in slots.items()
            ]
            params = self._at(place) | {
                "task_id": task_id,
                "task_path": path,
                "writes": json_codec.dumps_text(rows),
            }
            done = await run_sql(conn, "foreign_writes_put", params, self._db.timeout_s)
        if not done[0]["allowed"]:
            raise self._lost()

    async def read(self, place: Place) -> Row | None:
        """Read a checkpoint, or the newest; None when there is none."""
        row = await self._db.fetch_one("foreign_read", self._key(place))
        return None if row is None else _opened(row)

    async def writes(self, place: Place) -> list[Row]:
        """Read what tasks gave after a checkpoint."""
        return [
            _opened(row) for row in await self._db.fetch("foreign_writes_read", self._key(place))
        ]

    async def list(
        self,
        thread: str | None,
        ns: str | None,
        checkpoint_id: str | None = None,
        before: str | None = None,
    ) -> list[Row]:
        """List checkpoints, newest first."""
        params = {
            "tenant_id": self._tenant_id,
            "thread": thread,
            "ns": ns,
            "checkpoint_id": checkpoint_id,
            "before": before,
        }
        return [_opened(row) for row in await self._db.fetch("foreign_list", params)]

    async def delete(
        self,
        *,
        threads: Sequence[str] = (),
        run_keys: Sequence[str] = (),
        keep_latest: bool = False,
    ) -> None:
        """Forget threads (but for their newest checkpoints with `keep_latest`), or what a
        framework's own runs made.
        """
        await self._db.fetch(
            "foreign_delete",
            {
                "tenant_id": self._tenant_id,
                "threads": list(threads),
                "run_keys": list(run_keys),
                "keep_latest": keep_latest,
            },
        )

    async def copy(self, thread: str, to: str, head: str | None = None) -> None:
        """Copy a thread up to the checkpoint `head`, as a fork does."""
        params = {"tenant_id": self._tenant_id, "thread": thread, "to": to, "head": head}
        await self._db.fetch("foreign_copy", params)

    def _key(self, place: Place) -> dict[str, Any]:
        return {
            "tenant_id": self._tenant_id,
            "thread": place.thread,
            "ns": place.ns,
            "checkpoint_id": place.checkpoint_id,
        }

    def _at(self, place: Place) -> dict[str, Any]:
        run = self._owner
        return self._key(place) | {
            "run_id": run.id if run else None,
            "fence": run.fence if run else None,
            "claim_id": run.claim_id if run else None,
        }

    def _lost(self) -> LostOwnership:
        assert self._owner is not None
        return LostOwnership("another claim owns the run", run_id=encode("run", self._owner.id))


def _text(key: Any, data: bytes) -> str:  # noqa: ANN401 - a TenantKey or None
    stored = seal_bytes(key, zstandard.compress(data), "snapshot")
    return base64.b64encode(stored).decode()


def _opened(row: Mapping[str, Any]) -> Row:
    return {**row, "snapshot": zstandard.decompress(row["snapshot"])}
