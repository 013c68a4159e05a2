"""Whether the key that encrypts is there, is kept private, and opens what was stored with it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from harness_api.cli.finding import Finding, State
from harness_common.crypto.aead import CannotDecrypt
from harness_common.crypto.keks import KEK_FILE, KeyEncryptionKeys, data_key_place, parse_keks
from harness_common.settings import Settings

_NAME: Final = "encryption key"
_TIMEOUT_S: Final = 3
_SEE: Final = "See docs/secrets.md."
_ONE_OF_EACH: Final = """
SELECT DISTINCT ON (kek_id) kek_id, tenant_id, version, wrapped, count(*) OVER (PARTITION BY kek_id)
FROM tenant_keys ORDER BY kek_id, tenant_id, version DESC
"""


class _Wrapped(NamedTuple):
    """A wrapped data key, and how many its key-encryption key wraps."""

    kek_id: str
    tenant_id: UUID
    version: int
    wrapped: bytes
    keys: int


def check(config: Settings) -> Iterator[Finding]:
    """Look at the file, then try it on a stored data key of each key-encryption key."""
    path = _file(config)
    if path is not None and (fault := _privacy(path)):
        yield fault
    try:
        keks = _read(config, path)
    except (OSError, ValueError) as error:
        where = path or "HARNESS_SECRETS__KEK"
        yield Finding(_NAME, State.FAIL, f"{where}: {_told(error)}", f"Correct it. {_SEE}")
        return
    yield _opens(config, keks)


def _file(config: Settings) -> Path | None:
    """Return the file that the keys come from; None for the setting, or for none at all."""
    if config.secrets.kek is not None:
        return None
    if config.secrets.kek_file is not None:
        return config.secrets.kek_file
    path = config.data_dir / KEK_FILE
    return path if path.exists() else None


def _read(config: Settings, path: Path | None) -> KeyEncryptionKeys:
    if config.secrets.kek is not None:
        return parse_keks(config.secrets.kek.get_secret_value())
    return parse_keks(path.read_text()) if path is not None else KeyEncryptionKeys()


def _privacy(path: Path) -> Finding | None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None  # reading it says so
    if not mode & 0o077:
        return None
    text = f"{path} has mode {mode:04o}: others than its owner may read or change it"
    return Finding(_NAME, State.WARN, text, f"chmod 600 {path}")


def _opens(config: Settings, keks: KeyEncryptionKeys) -> Finding:
    have = ", ".join(keks.ciphers) or "none is set"
    try:
        rows = _stored(config)
    except SystemExit:
        return _untried(keks, have, "no database to try it on")
    except OSError as error:
        return _untried(keks, have, _told(error))
    lost = [f"{r.kek_id} ({r.keys} data keys)" for r in rows if r.kek_id not in keks.ciphers]
    if lost:
        text = f"{have}; what is stored needs {', '.join(lost)}, which is not here"
        return Finding(_NAME, State.FAIL, text, f"Without it nothing of that can be read. {_SEE}")
    for row in rows:
        try:
            keks.get(row.kek_id).open(row.wrapped, data_key_place(row.tenant_id, row.version))
        except CannotDecrypt:
            text = f"{row.kek_id} does not open what it is said to have wrapped: it has other bytes"
            return Finding(_NAME, State.FAIL, text, f"Bring back the key that was used. {_SEE}")
    if keks.current is None:
        text = "none is set: secrets and encryption are refused, all else works"
        return Finding(_NAME, State.WARN, text, f"Make one and keep a copy of it. {_SEE}")
    tried = (
        f"opens a data key of each of {', '.join(r.kek_id for r in rows)}" if rows else "unused yet"
    )
    return Finding(_NAME, State.OK, f"{have}: {tried}")


def _untried(keks: KeyEncryptionKeys, have: str, why: str) -> Finding:
    state = State.OK if keks.current is not None else State.WARN
    advice = "" if keks.current else f"Secrets and encryption are refused without one. {_SEE}"
    return Finding(_NAME, state, f"{have}; not tried: {why}", advice)


def _stored(config: Settings) -> list[_Wrapped]:
    """Read one wrapped data key of each key-encryption key."""
    import psycopg

    try:
        with psycopg.connect(
            config.database_login("system"), connect_timeout=_TIMEOUT_S, autocommit=True
        ) as conn:
            return [_Wrapped(*row) for row in conn.execute(_ONE_OF_EACH.encode())]
    except psycopg.Error as error:
        raise OSError(str(error).strip().splitlines()[0][:200]) from error


def _told(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
