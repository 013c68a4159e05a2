"""An export on the wire: one JSON document a line, the first says what it is, the last what was
before it.

The last line counts the records of each kind and has the SHA-256 of all bytes before it: a file
without it, or with another digest, is not whole.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.responses import StreamingResponse

from harness_common.store.export import FORMAT, Record

MEDIA_TYPE: Final = "application/x-ndjson"
ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One JSON document a line; the last one has counts and a digest.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}
_BATCH_BYTES: Final = 64 * 1024


def _default(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def line_of(record: Record) -> bytes:
    """Write a record."""
    return orjson.dumps(record, default=_default, option=orjson.OPT_UTC_Z) + b"\n"


async def lines(
    subject: dict[str, str], records: AsyncIterator[Record], first: Record | None
) -> AsyncIterator[bytes]:
    """Yield the export in pieces of some lines; `first` was taken from `records` already."""
    digest, counts = hashlib.sha256(), Counter[str]()
    head = {"kind": "manifest", "format": FORMAT, "subject": subject, "at": datetime.now(UTC)}
    held = [line_of(head)]
    size = 0
    if first is not None:
        held.append(line_of(first))
        counts[first["kind"]] += 1
    async for record in records:
        counts[record["kind"]] += 1
        held.append(line_of(record))
        size += len(held[-1])
        if size >= _BATCH_BYTES:
            piece, held, size = b"".join(held), [], 0
            digest.update(piece)
            yield piece
    piece = b"".join(held)
    digest.update(piece)
    yield piece
    yield line_of({"kind": "end", "records": dict(counts), "sha256": digest.hexdigest()})


def answer(
    name: str, subject: dict[str, str], records: AsyncIterator[Record], first: Record | None
) -> StreamingResponse:
    """Answer with an export; `first` was taken from `records` already."""
    return StreamingResponse(
        lines(subject, records, first),
        media_type=MEDIA_TYPE,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.ndjson"',
            "Cache-Control": "no-store",
        },
    )
