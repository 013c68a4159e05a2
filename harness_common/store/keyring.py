"""The data keys of tenants: made once each, wrapped by a key-encryption key that is not in the
database.

Every connection carries the keyring of its `Database`. `seal_commits` and `writing` are called
before a body is written; `open_rows` is called by `db` for rows that hold something sealed. Keys
are kept unwrapped in memory (bounded), and whether a tenant wants its bodies encrypted is asked
again after `FRESH_S`: a tenant that has not asked for it costs a look into a dictionary.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import structlog

from harness_common.core.errors import HarnessError
from harness_common.core.ids import encode
from harness_common.crypto.aead import CannotDecrypt, Cipher, KeyMissing, new_key
from harness_common.crypto.keks import KEK_FILE, KeyEncryptionKeys, data_key_place, parse_keks
from harness_common.settings import Settings
from harness_common.store import sealed
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database
from harness_common.store.sealed import Keys, TenantKey

log = structlog.get_logger()

FRESH_S: Final = 5.0
"""How long a process may take to notice that a tenant turned encryption on or off."""
_KEPT: Final = 5_000


def load_keks(config: Settings) -> KeyEncryptionKeys:
    """Read the key-encryption keys: the setting, its file, or the file `kek` of the data folder.

    None of them is made here: `harness dev` makes one, whoever deploys makes theirs. Raises
    `SystemExit` that says what is wrong.
    """
    given, path = config.secrets.kek, config.secrets.kek_file
    where = "HARNESS_SECRETS__KEK"
    try:
        if given is not None:
            return parse_keks(given.get_secret_value())
        file = path or config.data_dir / KEK_FILE
        where = str(file)
        if path is None and not file.exists():
            return KeyEncryptionKeys()
        return parse_keks(file.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{where}: {error}") from None


class Keyring:
    """The unwrapped keys of one process."""

    def __init__(self, keks: KeyEncryptionKeys | None = None) -> None:
        self.keks = keks or KeyEncryptionKeys()
        self._keys: OrderedDict[UUID, dict[int, TenantKey]] = OrderedDict()
        self._writing: OrderedDict[UUID, tuple[float, TenantKey | HarnessError | None]] = (
            OrderedDict()
        )

    def forget(self, tenant_id: UUID) -> None:
        """Ask again whether a tenant wants its bodies encrypted."""
        self._writing.pop(tenant_id, None)

    def known(self, tenant_id: UUID) -> tuple[TenantKey | HarnessError | None] | None:
        """Return what `writing` would give for a tenant without asking; None when it would ask."""
        until, key = self._writing.get(tenant_id, (0.0, None))
        return (key,) if until > time.monotonic() else None

    async def writing(
        self, conn: Connection, tenant_ids: Iterable[UUID], timeout_s: float
    ) -> Mapping[UUID, TenantKey | HarnessError | None]:
        """Return for each tenant the key its bodies are written with; None where they stay plain,
        and the error where the key is needed and cannot be had.
        """
        now = time.monotonic()
        known, wanted = {}, []
        for tenant_id in tenant_ids:
            if (found := self.known(tenant_id)) is not None:
                known[tenant_id] = found[0]
            else:
                wanted.append(tenant_id)
        if wanted:
            rows = await run_sql(conn, "keys_writing", {"tenant_ids": list(set(wanted))}, timeout_s)
            on = {row["tenant_id"]: row for row in rows}
            for tenant_id in wanted:
                key = self._writing_key(on[tenant_id]) if tenant_id in on else None
                known[tenant_id] = key
                self._writing[tenant_id] = (now + FRESH_S, key)
            while len(self._writing) > _KEPT:
                self._writing.popitem(last=False)
        return known

    def _writing_key(self, row: Row) -> TenantKey | HarnessError:
        try:
            return self._unwrap(row)
        except (KeyMissing, CannotDecrypt) as error:
            return error

    async def writing_key(
        self, conn: Connection, tenant_id: UUID, timeout_s: float
    ) -> TenantKey | None:
        """Return the key that a tenant's bodies are written with; raises `KeyMissing`."""
        key = (await self.writing(conn, [tenant_id], timeout_s))[tenant_id]
        if isinstance(key, HarnessError):
            raise key
        return key

    async def keys(
        self, conn: Connection, tenant_id: UUID, versions: Iterable[int], timeout_s: float
    ) -> Keys:
        """Return a tenant's data keys, at least those of `versions` that exist; raises `KeyMissing`
        and `CannotDecrypt`.
        """
        known = self._keys.get(tenant_id, {})
        if not known.keys() >= set(versions):
            params = {"tenant_id": tenant_id, "versions": list(versions)}
            for row in await run_sql(conn, "keys_read", params, timeout_s):
                self._unwrap(row)
            known = self._keys.get(tenant_id, {})
        if tenant_id in self._keys:
            self._keys.move_to_end(tenant_id)
        return known

    async def newest(self, conn: Connection, tenant_id: UUID, timeout_s: float) -> TenantKey:
        """Return the key that a tenant's secrets are written with, made at the first use, within
        the open transaction; raises `KeyMissing`.
        """
        self.keks.require_current()
        params = {"tenant_id": tenant_id, "versions": None}
        rows = await run_sql(conn, "keys_read", params, timeout_s)
        if not rows:
            rows = await self._make(conn, tenant_id, 1, timeout_s)
        return self._fresh(rows[-1])

    async def replace(self, conn: Connection, tenant_id: UUID, timeout_s: float) -> TenantKey:
        """Make a further data key of a tenant, for what is written from now on."""
        params = {"tenant_id": tenant_id, "versions": None}
        rows = await run_sql(conn, "keys_read", params, timeout_s)
        version = rows[-1]["version"] + 1 if rows else 1
        (row,) = await self._make(conn, tenant_id, version, timeout_s)
        return self._fresh(row)

    async def _make(
        self, conn: Connection, tenant_id: UUID, version: int, timeout_s: float
    ) -> list[Row]:
        """Make a data key unless another transaction was first; return the newest row."""
        kek_id = self.keks.require_current()
        wrapped = self.keks.get(kek_id).seal(new_key(), data_key_place(tenant_id, version))
        params = {
            "tenant_id": tenant_id, "version": version, "kek_id": kek_id, "wrapped": wrapped,
        }  # fmt: skip
        return await run_sql(conn, "key_make", params, timeout_s)

    def _unwrap(self, row: Row) -> TenantKey:
        tenant_id, version = row["tenant_id"], row["version"]
        of_tenant = self._keys.setdefault(tenant_id, {})
        if version in of_tenant:
            return of_tenant[version]
        key = of_tenant[version] = self._fresh(row)
        while len(self._keys) > _KEPT:
            self._keys.popitem(last=False)
        return key

    def _fresh(self, row: Row) -> TenantKey:
        """Unwrap a key without keeping it: its row may not be committed."""
        return TenantKey(row["tenant_id"], row["version"], Cipher(self.unwrap(row)))

    def unwrap(self, row: Row) -> bytes:
        """Return the data key of a row of `tenant_keys`."""
        cipher = self.keks.get(row["kek_id"])
        try:
            return cipher.open(row["wrapped"], data_key_place(row["tenant_id"], row["version"]))
        except CannotDecrypt as error:
            tenant = encode("tenant", row["tenant_id"])
            raise CannotDecrypt(
                f"the data key of {tenant} does not open with the key-encryption key "
                f"{row['kek_id']!r} of this process: the key of that name has other bytes than the "
                "one that wrapped it, or the row was changed",
                kek_id=row["kek_id"],
            ) from error

    def rewrapped(self, row: Row) -> dict[str, Any]:
        """Return the columns of a data key wrapped by the current key-encryption key."""
        kek_id = self.keks.require_current()
        place = data_key_place(row["tenant_id"], row["version"])
        wrapped = self.keks.get(kek_id).seal(self.unwrap(row), place)
        return {"kek_id": kek_id, "wrapped": wrapped}

    async def open_rows(
        self,
        conn: Connection,
        rows: Sequence[Row],
        tenant_id: UUID | None,
        timeout_s: float,
        *,
        many_tenants: bool,
    ) -> None:
        """Open in place what is sealed in rows. Rows of many tenants that cannot be opened get the
        error under `broken` (see `rows.run_from_row`), so that they cost their neighbours nothing.
        """
        if many_tenants:
            await self._mark_unwritable(conn, rows, timeout_s)
        for row in rows:
            if not sealed.has_sealed((row,)):
                continue
            owner = row.get("tenant_id") or tenant_id
            if owner is None:
                raise RuntimeError("a statement returns something sealed and names no tenant")
            try:
                keys = await self.keys(conn, owner, sealed.versions(row), timeout_s)
                sealed.open_row(keys, row)
            except (CannotDecrypt, KeyMissing) as error:
                if not many_tenants:
                    raise
                row["broken"] = error

    async def _mark_unwritable(
        self, conn: Connection, rows: Sequence[Row], timeout_s: float
    ) -> None:
        """Mark rows whose tenant wants encryption by a key that this process cannot have."""
        writing = await self.writing(conn, {row["tenant_id"] for row in rows}, timeout_s)
        for row in rows:
            if isinstance(error := writing[row["tenant_id"]], HarnessError):
                row["broken"] = error


NO_KEYS: Final = Keyring()
"""Of connections that nobody gave a keyring: refuses what would need a key."""


def keyring_of(conn: Connection) -> Keyring:
    """Return the keyring that a connection carries."""
    return conn.keyring if isinstance(conn.keyring, Keyring) else NO_KEYS


async def writing_key_of(db: Database, tenant_id: UUID) -> TenantKey | None:
    """Do what `writing_key` does without a transaction at hand; asks Postgres, within the tenant,
    only what is not known yet.
    """
    ring = db.keyring if isinstance(db.keyring, Keyring) else NO_KEYS
    if (known := ring.known(tenant_id)) is None:
        async with db.tenant_transaction(tenant_id) as conn:
            return await ring.writing_key(conn, tenant_id, db.timeout_s)
    if isinstance(known[0], HarnessError):
        raise known[0]
    return known[0]


async def writing_key(conn: Connection, tenant_id: UUID, timeout_s: float) -> TenantKey | None:
    """Return the key that a tenant's bodies are written with; None where they stay plain. Raises
    `KeyMissing`.
    """
    return await keyring_of(conn).writing_key(conn, tenant_id, timeout_s)


async def seal_commits(
    conn: Connection, bodies: Sequence[dict[str, Any]], timeout_s: float
) -> list[dict[str, Any]]:
    """Return bodies of `commit.sql` as they are stored; raises `KeyMissing`."""
    writing = await keyring_of(conn).writing(conn, {b["tenant_id"] for b in bodies}, timeout_s)
    out = []
    for body in bodies:
        key = writing[body["tenant_id"]]
        if isinstance(key, HarnessError):
            raise key
        out.append(sealed.seal_commit(key, body))
    return out
