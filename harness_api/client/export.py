"""Reading exports: record by record, and whether a file is whole.

An export is one JSON document a line. Its last line has the number of records of each kind and the
SHA-256 of all bytes before it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness_common.core.errors import Permanent

Record = dict[str, Any]


class NotWhole(Permanent):
    """An export that breaks off, or that was changed."""

    code = "EXPORT_NOT_WHOLE"


@dataclass
class Check:
    """Follows an export as it comes in pieces of any size; `finish` says whether it was whole."""

    records: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _line: bytes = b""
    _end: Record | None = None

    def feed(self, piece: bytes) -> list[Record]:
        """Take the next piece; return the records that it completes. Raises `NotWhole`."""
        self.size_bytes += len(piece)
        *whole, self._line = (self._line + piece).split(b"\n")
        return [self._take(line + b"\n") for line in whole]

    def _take(self, line: bytes) -> Record:
        if self._end is not None:
            raise NotWhole("something follows the last line of the export")
        try:
            record: Record = json.loads(line)
            kind: str = record["kind"]
        except (ValueError, KeyError, TypeError) as error:
            raise NotWhole(f"this is no line of an export: {line[:80]!r}") from error
        if kind == "end":
            self._end = record
            if record["sha256"] != self._digest.hexdigest():
                raise NotWhole("the export was changed: its digest is another one")
            if record["records"] != dict(self.records):
                raise NotWhole("the export counts other records than it has")
            return record
        self._digest.update(line)
        if kind != "manifest":
            self.records[kind] += 1
        return record

    def finish(self) -> None:
        """Raise `NotWhole` unless the last line has come."""
        if self._end is None or self._line:
            raise NotWhole("the export breaks off before its last line")


def read_export(pieces: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of an export (an open file will do); raises `NotWhole`, at the latest at
    its end.
    """
    check = Check()
    for piece in pieces:
        yield from check.feed(piece)
    check.finish()


def artifact_bytes(records: Iterable[Record]) -> dict[str, bytes]:
    """Put the bytes of artifacts together, by their ids; raises `NotWhole` for other bytes than
    their digest says.
    """
    data: dict[str, bytearray] = {}
    digests: dict[str, str] = {}
    for record in records:
        if record["kind"] == "artifact" and record["has_content"]:
            data[record["id"]], digests[record["id"]] = bytearray(), record["sha256"]
        elif record["kind"] == "artifact_bytes":
            data[record["id"]] += base64.b64decode(record["base64"])
    for name, digest in digests.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            raise NotWhole(f"{name} has other bytes than its digest says")
    return {name: bytes(found) for name, found in data.items()}
