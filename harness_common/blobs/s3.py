"""Artifacts as objects of an S3-compatible store, named by their content.

`HARNESS_BLOBS=s3://bucket/prefix` with the usual `AWS_*` variables (`AWS_ENDPOINT_URL` for a store
that is not Amazon's). Needs the extra `harness[s3]`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from harness_common.contracts.blob import Blobs
from harness_common.core.errors import Invalid, Permanent, Transient
from harness_common.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Store

_ASIDE_BYTES: Final = 1024 * 1024
"""From this size on a digest is computed in a thread."""


class S3Blobs:
    """A content-addressed store in a bucket. The same bytes written twice are the same object.

    Raises `Transient` when the store does not answer, `Permanent` when it refuses.
    """

    def __init__(self, store: S3Store) -> None:
        self._store = store

    @staticmethod
    def key(digest: str) -> str:
        """Return where the bytes of a digest lie below the prefix."""
        return f"{digest[:2]}/{digest[2:4]}/{digest}"

    async def put(self, data: bytes) -> str:
        """Keep bytes and return their SHA-256 in hex. Durable when it returns; safe to repeat."""
        aside = len(data) > _ASIDE_BYTES
        digest = await asyncio.to_thread(_digest, data) if aside else _digest(data)
        with _named():
            await self._store.put_async(self.key(digest), data)
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest; raises `FileNotFoundError`."""
        with _named():
            found = await self._store.get_async(self.key(digest))
            return bytes(await found.bytes_async())

    async def delete(self, digest: str, unused_s: float) -> bool:
        """Delete the bytes unless they were put within `unused_s` (each `put` writes the object, so
        that the store knows when); return whether they are gone. S3 has no "delete unless written
        since": of the same bytes put in the very instant between, only a bucket with versions has
        a copy.
        """
        with _named():
            try:
                written = (await self._store.head_async(self.key(digest)))["last_modified"]
            except FileNotFoundError:
                return True
            if (datetime.now(UTC) - written).total_seconds() < unused_s:
                return False
            await self._store.delete_async(self.key(digest))
            return True


@contextmanager
def _named() -> Iterator[None]:
    """Name what the library raises."""
    from obstore import exceptions as of  # noqa: PLC0415 - of an extra

    try:
        yield
    except FileNotFoundError:
        raise
    except (of.PermissionDeniedError, of.UnauthenticatedError) as error:
        raise Permanent(_first_line(error), code="BLOBS_REFUSED") from error
    except of.BaseError as error:
        raise Transient(_first_line(error), code="BLOBS_UNAVAILABLE") from error


def _first_line(error: Exception) -> str:
    return f"the blob store: {str(error).splitlines()[0][:300]}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_s3(where: str, settings: Settings) -> Blobs:
    """Open the bucket that `HARNESS_BLOBS` names; raises `Invalid` when it names none, or when the
    extra is not installed.
    """
    del settings
    bucket = where.removeprefix("//")
    if not where.startswith("//") or not bucket.strip("/"):
        raise Invalid(
            f"HARNESS_BLOBS=s3:{where[:200]} names no bucket; write s3://bucket/prefix",
            code="BLOBS_INVALID",
            field="blobs",
            value=where[:200],
        )
    try:
        from obstore.store import S3Store  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise Invalid(
            "HARNESS_BLOBS=s3:… needs the extra s3: install harness[s3]",
            code="BLOBS_INVALID",
            field="blobs",
        ) from error
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return S3Blobs(
        S3Store.from_url(
            f"s3://{bucket}",
            client_options={"allow_http": plain, "timeout": "60s", "connect_timeout": "5s"},
            retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=30)},
        )
    )
