"""What an encrypted value looks like in a row, and where such values stand.

A tenant may have its bodies encrypted (`store.keyring`). Each value says for itself that it is, and
with which version of the tenant's data key, so that what was written before stays readable and rows
of one table may differ. A text is a token; a JSON value is that token as a JSON string; a snapshot
has a magic in front. Plain text that looks like a token is escaped when it is written.

Writing: `seal_commit` and its like, called right before a statement. Reading: `open_row`, called
for every row by `db.run_sql` and `run_core`, looks at the columns that may hold one by their names.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from harness_common.core.message import Json
from harness_common.crypto.aead import CannotDecrypt, Cipher
from harness_common.store import json_codec

PREFIX: Final = "hsealed1."
_QUOTED: Final = f'"{PREFIX}'
_MAGIC: Final = b"hsealed1"
_TEXTS: Final = frozenset(
    {"input", "output", "result", "result_before", "answer", "sealed", "memory_summary"}
)
_JSONS: Final = frozenset(
    {
        *("body", "payload", "arguments", "delta", "waiting"),
        *("ran_arguments", "original_arguments", "shown", "failed_attempts", "kept"),
    }
)
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "error": ("message", "detail"),
    "memo": ("steer",),
    "evidence": ("late_result",),
    "overrides": ("request",),
}
"""JSON columns of which SQL reads or extends the rest: only these parts are sealed."""
_ROWS: Final = frozenset({"call", "calls", "resolution", "before"})
"""JSON columns that hold columns: rows of the ledger, and what a resolution kept of one."""
COLUMNS: Final = _TEXTS | _JSONS | _PARTS.keys() | _ROWS | {"new_messages", "snapshot"}
PLAIN_EVENTS: Final = frozenset({"tool.started"})
"""SQL looks into these; they hold names and numbers only."""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """A version of a tenant's data key, unwrapped."""

    tenant_id: UUID
    version: int
    cipher: Cipher

    def bound_to(self, *place: object) -> bytes:
        """Name a place that something is sealed for: tenant, key version and what it is."""
        parts = ("harness", self.tenant_id.hex, self.version, *place)
        return "|".join(map(str, parts)).encode()

    def seal(self, kind: str, plain: str) -> str:
        """Write a token; `kind` is `t` for a text and `j` for JSON."""
        data = self.cipher.seal(plain.encode(), self.bound_to("body", kind))
        return f"{PREFIX}{kind}.{self.version}.{base64.urlsafe_b64encode(data).decode()}"

    def seal_bytes(self, plain: bytes, what: str) -> bytes:
        """Write sealed bytes: magic, version, ciphertext."""
        version = self.version.to_bytes(4, "big")
        return _MAGIC + version + self.cipher.seal(plain, self.bound_to(what))


Keys = Mapping[int, TenantKey]
"""The data keys of one tenant by version."""


def version_of(token: str) -> int | None:
    """Return the key version of a token; None for text that only looks like one."""
    fields = token.removeprefix(PREFIX).split(".", 2)
    if len(fields) != 3 or fields[0] not in {"t", "j"} or not fields[1].isdecimal():
        return None
    return int(fields[1])


def _open_token(keys: Keys, token: str) -> str:
    kind, version, data = token.removeprefix(PREFIX).split(".", 2)
    key = keys.get(int(version))
    if key is None:
        raise CannotDecrypt(f"the tenant has no data key {version}", version=int(version))
    try:
        sealed = base64.b64decode(data.encode(), altchars=b"-_", validate=True)
    except ValueError as error:
        raise CannotDecrypt("what is stored is no ciphertext: it was changed since") from error
    return key.cipher.open(sealed, key.bound_to("body", kind)).decode()


# --- writing ------------------------------------------------------------------------------------


def seal_text(key: TenantKey | None, text: str | None) -> str | None:
    """Return a text as it is stored."""
    if text is None:
        return None
    if key is not None:
        return key.seal("t", text)
    return f"{PREFIX}p.{text}" if text.startswith(PREFIX) else text


def seal_json(key: TenantKey | None, value: Json) -> Json:
    """Return a JSON value as it is stored; null and what is empty stay."""
    if key is not None and value:
        return key.seal("j", json_codec.dumps_text(value))
    return seal_text(None, value) if isinstance(value, str) else value


def seal_json_text(key: TenantKey | None, text: str) -> str:
    """Return a JSON document as it is stored."""
    if key is not None:
        return f'"{key.seal("j", text)}"'
    return f"{_QUOTED}p.{text[1:]}" if text.startswith(_QUOTED) else text


def seal_bytes(key: TenantKey | None, data: bytes, what: str) -> bytes:
    """Return bytes as they are stored."""
    return data if key is None else key.seal_bytes(data, what)


def seal_parts(key: TenantKey | None, column: str, value: Json) -> Json:
    """Return a JSON object of which some parts are content."""
    if not isinstance(value, dict) or not any(part in value for part in _PARTS[column]):
        return value
    return {k: seal_json(key, v) if k in _PARTS[column] else v for k, v in value.items()}


def seal_commit(key: TenantKey | None, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of `commit.sql` or `start_insert.sql` as it is stored."""
    out = dict(body)
    if body.get("input") is not None:
        out["input"] = seal_text(key, body["input"]) if body["input"] else ""
    out["output"] = seal_text(key, body["output"])
    if body.get("session_summary") is not None:
        out["session_summary"] = seal_text(key, body["session_summary"])
    out["error"] = seal_parts(key, "error", body["error"])
    out["memo"] = seal_parts(key, "memo", body["memo"])
    if body.get("overrides"):
        out["overrides"] = seal_parts(key, "overrides", body["overrides"])
    out["waiting"] = seal_json(key, body["waiting"])
    for name, column, seal in _LISTS:
        if body.get(name):
            out[name] = [item | {column: seal(key, item[column])} for item in body[name]]
    if body.get("outcomes"):
        out["outcomes"] = [seal_outcome(key, item) for item in body["outcomes"]]
    if body.get("asked"):
        out["asked"] = [_seal_asked(key, item) for item in body["asked"]]
    return out if key is None else _seal_record(key, body, out)


def _seal_record(key: TenantKey, body: dict[str, Any], out: dict[str, Any]) -> dict[str, Any]:
    """Encrypt what is stored of a commit beside the run itself: events, checkpoint, snapshot."""
    out["events"] = [
        e if e["type"] in PLAIN_EVENTS else e | {"payload": seal_json(key, e["payload"])}
        for e in body["events"]
    ]
    if body.get("checkpoint"):
        delta = seal_json(key, body["checkpoint"]["delta"])
        out["checkpoint"] = body["checkpoint"] | {"delta": delta}
    if body.get("snapshot"):
        data = key.seal_bytes(base64.b64decode(body["snapshot"]), "snapshot")
        out["snapshot"] = base64.b64encode(data).decode()
    return out


_LISTS: Final[tuple[tuple[str, str, Callable[[TenantKey | None, Any], Any]], ...]] = (
    ("messages", "body", seal_json_text),
    ("proposed", "arguments", seal_json_text),
)


def seal_outcome(key: TenantKey | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return how a call ended as the ledger stores it (`apply.outcome_rows`)."""
    return row | {
        name: seal(key, row[name]) for name, seal in _OUTCOME if row.get(name) is not None
    }


_OUTCOME: Final[tuple[tuple[str, Callable[[TenantKey | None, Any], Any]], ...]] = (
    ("result", seal_text),
    ("answer", seal_text),
    ("ran_arguments", seal_json_text),
    ("failed_attempts", seal_json),
)


def _seal_asked(key: TenantKey | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return what a person is shown as `approvals` stores it."""
    out = row | {"shown": seal_json(key, row["shown"])}
    for name in ("arguments", "original_arguments"):
        if row.get(name) is not None:
            out[name] = seal_json_text(key, row[name])
    return out


# --- reading ------------------------------------------------------------------------------------


def has_sealed(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether any value of these rows has to be opened."""
    return any(True for row in rows for name in COLUMNS & row.keys() if _looks(name, row[name]))


def _looks(name: str, value: Any) -> bool:  # noqa: ANN401 - a column
    if value is None or isinstance(value, int):
        return False
    if isinstance(value, str):
        return value.startswith(PREFIX) or (name == "body" and value.startswith(_QUOTED))
    if name == "new_messages":
        return any(v.startswith(_QUOTED) for v in value)
    if name in _PARTS:
        return isinstance(value, dict) and any(
            _looks("", value[part]) for part in _PARTS[name] if part in value
        )
    if name in _ROWS:
        return has_sealed(_rows_in(value))
    return isinstance(value, bytes) and value.startswith(_MAGIC)


def _rows_in(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a column
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, dict)]


def versions(row: Mapping[str, Any]) -> set[int]:
    """Return the versions of data keys that a row needs."""
    return {v for token in _tokens(row) if (v := version_of(token)) is not None} | {
        int.from_bytes(value[8:12], "big")
        for value in (row.get("snapshot"),)
        if isinstance(value, bytes) and value.startswith(_MAGIC)
    }


def _tokens(row: Mapping[str, Any]) -> Iterator[str]:
    for name in COLUMNS & row.keys():
        value = row[name]
        if not _looks(name, value):
            continue
        if name == "new_messages":
            yield from (v[1:] for v in value if v.startswith(_QUOTED))
        elif name in _PARTS:
            yield from (v for part in _PARTS[name] if _looks("", v := value.get(part)))
        elif name in _ROWS:
            for row_in in _rows_in(value):
                yield from _tokens(row_in)
        elif isinstance(value, str):
            yield value[1:] if value.startswith('"') else value


def open_row(keys: Keys, row: dict[str, Any]) -> None:
    """Open in place what is sealed in a row; raises `CannotDecrypt`."""
    for name in COLUMNS & row.keys():
        if _looks(name, row[name]):
            row[name] = _open(keys, name, row[name])


def _open(keys: Keys, name: str, value: Any) -> Any:  # noqa: ANN401 - one per kind of column
    if name == "snapshot":
        return open_bytes(keys, value, "snapshot")
    if name == "new_messages":
        return [_open_json_text(keys, v) for v in value]
    if name in _PARTS:
        return {k: _open_json(keys, v) if k in _PARTS[name] else v for k, v in value.items()}
    if name in _ROWS:
        for row_in in _rows_in(value):
            open_row(keys, row_in)
        return value
    if name == "body" and value.startswith(_QUOTED):
        return _open_json_text(keys, value)
    return _open_text(keys, value) if name in _TEXTS else _open_json(keys, value)


def _escaped(token: str) -> str | None:
    plain = f"{PREFIX}p."
    return token.removeprefix(plain) if token.startswith(plain) else None


def _open_text(keys: Keys, token: str) -> str:
    plain = _escaped(token)
    return _open_token(keys, _known(token)) if plain is None else plain


def _open_json(keys: Keys, value: Json) -> Json:
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return value
    plain = _escaped(value)
    return json_codec.loads(_open_token(keys, _known(value))) if plain is None else plain


def _open_json_text(keys: Keys, text: str) -> str:
    if not text.startswith(_QUOTED):
        return text
    plain = _escaped(text[1:])
    return _open_token(keys, _known(text[1:-1])) if plain is None else f'"{plain}'


def _known(token: str) -> str:
    if version_of(token) is None:
        raise CannotDecrypt("what is stored is no ciphertext: it was changed since")
    return token


def version_of_bytes(data: bytes) -> int | None:
    """Return the key version of sealed bytes; None for plain ones."""
    return int.from_bytes(data[8:12], "big") if data.startswith(_MAGIC) else None


def open_bytes(keys: Keys, data: bytes, what: str) -> bytes:
    """Open sealed bytes; raises `CannotDecrypt`."""
    version = version_of_bytes(data)
    key = None if version is None else keys.get(version)
    if key is None:
        raise CannotDecrypt(f"the tenant has no data key {version}", version=version)
    return key.cipher.open(data[12:], key.bound_to(what))
