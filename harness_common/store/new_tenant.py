"""Another tenant and its first admin key: `python -m harness_common.store.new_tenant NAME`, which
`harness make-tenant` starts.

By the system's login and not over the API, whose login sees the rows of one tenant and adds none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from harness_common.core.errors import Conflict, HarnessError, Invalid, Permanent
from harness_common.core.ids import encode
from harness_common.settings import Settings, settings
from harness_common.store import json_codec, keys
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.db import Database

NAME_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class NewTenant:
    """What was made; the key's text is nowhere else."""

    tenant_id: UUID
    name: str
    key: str


async def make_tenant(db: Database, config: Settings, name: str) -> NewTenant:
    """Make a tenant with limits as by the settings, and a key of the role admin; all or nothing.

    Raises `Invalid` for a name that is none, `Conflict` for one that is taken, and `Permanent`
    where the API's pepper is not known: a key of another would never be let in.
    """
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > NAME_CHARS:
        raise Invalid(f"a tenant's name is 1 to {NAME_CHARS} characters on one line", field="name")
    pepper = keys.read_pepper(config)
    if pepper is None:
        raise Permanent(
            "The pepper of the API is not known here. Set HARNESS_API__KEY_PEPPER as the API has "
            "it, or HARNESS_DATA_DIR to its data folder.",
            code="PEPPER_MISSING",
        )
    async with db.transaction() as conn:
        row = await ensure_tenant(conn, config, name, db.timeout_s)
        if not row["made"]:
            raise Conflict(f"there is a tenant {name!r} already", code="TENANT_EXISTS")
        tenant_id: UUID = row["tenant_id"]
        new = keys.NewKey("admin", "admin")
        key, text = await keys.insert_key(conn, tenant_id, pepper, new, db.timeout_s)
        entry = Entry("api_key.create", encode("api_key", key["id"]), {"name": new.name})
        record(conn, tenant_id, Actor("bootstrap"), entry)
    return NewTenant(tenant_id, name, text)


async def _run(config: Settings, name: str) -> NewTenant:
    async with Database(
        config.database_login("system"), config.database, name="harness-make-tenant"
    ) as db:
        await db.ready()
        return await make_tenant(db, config, name)


def main() -> int:
    """Run from the command line: the key on standard output, the rest beside it."""
    parser = argparse.ArgumentParser(prog="python -m harness_common.store.new_tenant")
    parser.add_argument("name")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        made = asyncio.run(_run(settings(), given.name))
    except HarnessError as error:
        sys.stderr.write(f"error: {error.message} [{error.error_code}]\n")
        return 1
    shown = encode("tenant", made.tenant_id)
    if given.json:
        told = {"id": shown, "name": made.name, "secret": made.key}
        sys.stdout.write(json_codec.dumps_text(told) + "\n")
    else:
        sys.stdout.write(made.key + "\n")
        sys.stderr.write(
            f"made the tenant {made.name!r} ({shown}); its admin key is above and is not shown "
            "again\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
