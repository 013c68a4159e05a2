"""Key-encryption keys: they wrap the data keys of tenants and are never in the database.

Written as `id:base64`, several of them with commas or on lines of their own. The first wraps what
is new; the others still unwrap what they wrapped, until `harness secrets rewrap` has moved it on.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from harness_common.crypto.aead import KEY_BYTES, Cipher, KeyMissing, new_key

_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,31}")
KEK_FILE: Final = "kek"
"""The file of the data folder that holds them where no setting does."""
HOW_TO: Final = (
    "Set HARNESS_SECRETS__KEK to `id:key`, where key is 32 random bytes in base64 "
    "(`echo k1:$(openssl rand -base64 32)`), or HARNESS_SECRETS__KEK_FILE to a file with that "
    "line, the same for API, scheduler and workers"
)


@dataclass(frozen=True, slots=True)
class KeyEncryptionKeys:
    """Those of this process, in order; the first is the current one."""

    ciphers: Mapping[str, Cipher] = field(default_factory=dict)

    @property
    def current(self) -> str | None:
        """Name the one that wraps what is new; None when there is none at all."""
        return next(iter(self.ciphers), None)

    def require_current(self) -> str:
        """Name the current one; raises `KeyMissing`, which says what to do."""
        if self.current is None:
            raise KeyMissing(
                f"nothing can be stored encrypted: no key-encryption key is set. {HOW_TO}."
            )
        return self.current

    def get(self, kek_id: str) -> Cipher:
        """Return one; raises `KeyMissing` that names it."""
        cipher = self.ciphers.get(kek_id)
        if cipher is None:
            known = ", ".join(self.ciphers) or "none"
            raise KeyMissing(
                f"a data key was wrapped with the key-encryption key {kek_id!r}, and this process "
                f"has {known}. {HOW_TO}.",
                kek_id=kek_id,
            )
        return cipher


def parse_keks(text: str) -> KeyEncryptionKeys:
    """Read `id:base64` entries; raises `ValueError` that never shows a key."""
    found: dict[str, Cipher] = {}
    entries = [e.strip() for line in text.splitlines() for e in line.split(",")]
    for number, entry in enumerate((e for e in entries if e and not e.startswith("#")), 1):
        kek_id, colon, key = entry.partition(":")
        kek_id = kek_id.strip()
        if not colon or not _ID.fullmatch(kek_id):
            raise ValueError(f"key-encryption key {number} is not written as `id:base64`")
        if kek_id in found:
            raise ValueError(f"key-encryption key {kek_id!r} is there twice")
        found[kek_id] = Cipher(_decode(kek_id, key.strip()))
    return KeyEncryptionKeys(found)


def _decode(kek_id: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        raise ValueError(f"key-encryption key {kek_id!r} is not base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"key-encryption key {kek_id!r} has {len(key)} bytes; it needs {KEY_BYTES}"
        )
    return key


def data_key_place(tenant_id: UUID, version: int) -> bytes:
    """Name what a wrapped data key is bound to."""
    return f"harness|data key|{tenant_id.hex}|{version}".encode()


def make_kek(kek_id: str) -> str:
    """Return a new entry, `id:base64`."""
    return f"{kek_id}:{base64.b64encode(new_key()).decode()}"
