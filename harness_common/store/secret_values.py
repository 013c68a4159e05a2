"""Secrets as the tools of a worker get them. Apart from `store.secrets`, so that a worker process
does not load SQLAlchemy.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from typing import Final
from uuid import UUID

from harness_common.core.errors import NotFound
from harness_common.crypto.aead import CannotDecrypt
from harness_common.redaction import Redactor, redactor
from harness_common.store import sealed
from harness_common.store.connection import run_sql
from harness_common.store.db import Database
from harness_common.store.keyring import keyring_of

NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(rf"secret://({NAME})")
_CACHED: Final = 1_000


def place(name: str, version: int) -> str:
    """Name what a secret's ciphertext is bound to, besides its tenant and data key."""
    return f"secret|{name}|{version}"


def no_secret(name: str) -> NotFound:
    """Build the error for a secret that the tenant does not have."""
    return NotFound(
        f"the tenant has no secret {name!r}; set it with `harness secrets set {name}`",
        code="SECRET_NOT_FOUND",
        field="secret",
        value=name,
    )


class TenantSecrets:
    """The secrets that a worker's tools use (`contracts.secrets`). Every value it gives is known to
    the redactor first.
    """

    def __init__(self, db: Database, *, cache_s: float = 15.0, known: Redactor = redactor) -> None:
        self._db = db
        self._cache_s = cache_s
        self._known = known
        self._cache: OrderedDict[tuple[UUID, str], tuple[float, str]] = OrderedDict()

    async def resolve(self, tenant_id: UUID, text: str) -> str:
        """Return `text` with each `secret://name` replaced; raises `NotFound`."""
        if "secret://" not in text:
            return text
        names = dict.fromkeys(_REFERENCE.findall(text))
        values = {name: await self.value(tenant_id, name) for name in names}
        return _REFERENCE.sub(lambda found: values[found[1]], text)

    async def value(self, tenant_id: UUID, name: str) -> str:
        """Return a secret's value; raises `NotFound`, `KeyMissing` and `CannotDecrypt`."""
        held = self._cache.get((tenant_id, name))
        if held is not None and held[0] > time.monotonic():
            value = held[1]
        else:
            value = await self._read(tenant_id, name)
            self._cache[tenant_id, name] = (time.monotonic() + self._cache_s, value)
            self._cache.move_to_end((tenant_id, name))
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        self._known.add(tenant_id, value)
        return value

    async def _read(self, tenant_id: UUID, name: str) -> str:
        timeout_s = self._db.timeout_s
        async with self._db.connection() as conn:
            of = {"tenant_id": tenant_id, "name": name}
            rows = await run_sql(conn, "secret_use", of, timeout_s)
            if not rows:
                self._cache.pop((tenant_id, name), None)
                raise no_secret(name)
            kept, version = rows[0]["value"], rows[0]["version"]
            key_version = sealed.version_of_bytes(kept)
            wanted = [] if key_version is None else [key_version]
            keys = await keyring_of(conn).keys(conn, tenant_id, wanted, timeout_s)
        try:
            return sealed.open_bytes(keys, kept, place(name, version)).decode()
        except CannotDecrypt as error:
            raise CannotDecrypt(
                f"the secret {name!r} (version {version}) does not open: {error.message}. Set it "
                "again.",
                secret=name,
            ) from error
