"""Secrets of tenants as the API writes and lists them; it never reads a value back. The worker's
tools do (`store.secret_values`).

A value is encrypted under the tenant's data key and bound to its tenant, name and version, so that
no ciphertext can be put in the place of another. Setting a secret again replaces it: the old value
is gone, and whoever uses it gets the new one within `secrets.cache_s`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Select, delete, func, select, update

from harness_common.core.errors import Conflict, Invalid
from harness_common.redaction import MIN_BYTES, redactor
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.keyring import keyring_of
from harness_common.store.schema import secrets
from harness_common.store.secret_values import no_secret, place

MAX_BYTES: Final = 64 * 1024
MAX_SECRETS: Final = 1_000
MAX_PLAIN_CHARS: Final = 64
_PLAIN: Final = re.compile(
    r"[ \"']*(?:[A-Z]?[a-z]{1,15}|[A-Z]{1,15})(?:[._:/](?:[a-z]{1,15}|[A-Z]{1,15}))*[_:=/ \"']*"
)
_SHOWN: Final = ("name", "version", "created_at", "set_at", "set_by", "last_used_at")


def _is_plain(value: str) -> bool:
    """Tell whether a value is a word, or some joined as our events, fields and paths are: logs,
    which all tenants share, are full of such.
    """
    return len(value) <= MAX_PLAIN_CHARS and _PLAIN.fullmatch(value) is not None


def check_value(value: str) -> None:
    """Raise `Invalid` for a value that cannot be a secret; says why without saying it."""
    size = len(value.encode())
    if size < MIN_BYTES:
        raise Invalid(
            f"the value has {size} bytes; a secret needs at least {MIN_BYTES}, because a shorter "
            "one cannot be kept out of logs and results without garbling ordinary text",
            code="SECRET_TOO_SHORT",
            field="value",
            limit=MIN_BYTES,
        )
    if _is_plain(value):
        raise Invalid(
            "the value is an ordinary word, or several; blotting it out would garble logs and "
            "results that have nothing to do with it. Use one that cannot be guessed, with digits "
            "or both cases of letters",
            code="SECRET_TOO_PLAIN",
            field="value",
        )
    if size > MAX_BYTES:
        raise Invalid(
            f"the value has {size} bytes; a secret has at most {MAX_BYTES}",
            code="SECRET_TOO_LONG",
            field="value",
            limit=MAX_BYTES,
        )
    if "\0" in value:
        raise Invalid("the value holds a NUL character; set it as base64", field="value")


async def put_secret(db: Database, tenant_id: UUID, name: str, value: str, actor: Actor) -> Row:
    """Set a secret, or replace its value; return what may be shown of it.

    Raises `Invalid` for a value too short or too long, `Conflict` when the tenant has too many,
    `KeyMissing` when this process has no key-encryption key.
    """
    check_value(value)
    of = {"tenant_id": tenant_id, "name": name}
    async with db.tenant_transaction(tenant_id) as conn:
        key = await keyring_of(conn).newest(conn, tenant_id, db.timeout_s)
        (row,) = await run_sql(conn, "secret_put", of | {"by": actor.name}, db.timeout_s)
        kept = key.seal_bytes(value.encode(), place(name, row["version"]))
        mine = (secrets.c.tenant_id == tenant_id, secrets.c.name == name)
        await run_core(conn, update(secrets).where(*mine).values(value=kept), db.timeout_s)
        count = select(func.count().label("n")).where(secrets.c.tenant_id == tenant_id)
        if (await run_core(conn, count, db.timeout_s))[0]["n"] > MAX_SECRETS:
            raise Conflict(
                f"the tenant has {MAX_SECRETS} secrets already; delete one first",
                code="TOO_MANY_SECRETS",
                limit=MAX_SECRETS,
            )
        entry = Entry("secret.set", name, {"version": row["version"]})
        record(conn, tenant_id, actor, entry)
        (shown,) = await run_core(conn, _select().where(*mine), db.timeout_s)
    redactor.add(tenant_id, value)  # so that no log line of this process shows it
    return shown


def _select() -> Select[tuple[Any, ...]]:
    return select(*(secrets.c[name] for name in _SHOWN))


async def list_secrets(
    db: Database, tenant_id: UUID, *, after: str | None = None, limit: int
) -> Sequence[Row]:
    """Return what may be shown of secrets, by name, after the name `after`."""
    query = _select().where(secrets.c.tenant_id == tenant_id)
    if after is not None:
        query = query.where(secrets.c.name > after)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(secrets.c.name).limit(limit), db.timeout_s)


async def delete_secret(db: Database, tenant_id: UUID, name: str, actor: Actor) -> None:
    """Delete a secret for good; raises `NotFound`."""
    mine = (secrets.c.tenant_id == tenant_id, secrets.c.name == name)
    async with db.tenant_transaction(tenant_id) as conn:
        gone = delete(secrets).where(*mine).returning(secrets.c.version)
        rows = await run_core(conn, gone, db.timeout_s)
        if not rows:
            raise no_secret(name)
        entry = Entry("secret.delete", name, {"version": rows[0]["version"]})
        record(conn, tenant_id, actor, entry)
