"""AES-256-GCM with a random nonce before each ciphertext; and what goes wrong with keys.

The library is loaded at the first use: a process that never meets a sealed value pays nothing.
"""

from __future__ import annotations

import os
from typing import Final

from harness_common.core.errors import Permanent, Transient

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class CannotDecrypt(Permanent):
    """The bytes were not written with this key for this place: another key, or changed since."""

    code = "CANNOT_DECRYPT"


class KeyMissing(Transient):
    """This process was not given the key-encryption key that is needed; another may have it."""

    code = "KEY_ENCRYPTION_KEY_MISSING"


class Cipher:
    """One key. `bound_to` of `open` must be what `seal` was given, or nothing opens."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._aead = AESGCM(key)

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        """Return nonce and ciphertext."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plain, bound_to)

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        """Return the plain bytes; raises `CannotDecrypt`, never gives anything else."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError) as error:
            raise CannotDecrypt(
                "what is stored does not open with this tenant's key: it was written with another "
                "key or for another place, or it was changed since"
            ) from error


def new_key() -> bytes:
    """Return a random key."""
    return os.urandom(KEY_BYTES)
