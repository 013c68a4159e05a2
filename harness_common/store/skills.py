"""Skills in Postgres: versions that never change. The API sets and shows them; runs pin them
(`skill_pins`).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from harness_common.contracts.skill import SkillSpec
from harness_common.core.errors import Conflict
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.schema import skills
from harness_common.store.skill_pins import no_skill
from harness_common.store.versions import list_newest, list_of_name, read_one

_TRIES: Final = 5


async def put_skill(
    db: Database, tenant_id: UUID, name: str, spec: SkillSpec, actor: Actor
) -> tuple[Row, bool]:
    """Add a version of a skill, unless its newest one is the same; return it and whether it is
    new.
    """
    digest = spec.digest()
    params = {
        "tenant_id": tenant_id,
        "name": name,
        "spec": json_codec.dumps_text(spec.model_dump(mode="json")),
        "digest": digest,
        "created_by": actor.name,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        for _ in range(_TRIES):
            rows = await run_sql(conn, "skill_put", params, db.timeout_s)
            if not rows:  # somebody else made the same version number meanwhile
                continue
            row = rows[0]
            if row["made"]:
                entry = Entry("skill.put", f"{name}@{row['version']}", {"digest": digest})
                record(conn, tenant_id, actor, entry)
            return row, row["made"]
    raise Conflict("others keep changing this skill; try again", field="name", value=name)


async def list_skills(
    db: Database, tenant_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return the newest version of each skill, last changed first, of those made before the version
    `before`.
    """
    return await list_newest(db, skills, tenant_id, before=before, limit=limit)


async def list_versions(
    db: Database, tenant_id: UUID, name: str, *, before: int | None, limit: int
) -> list[Row]:
    """Return the versions of a skill, newest first; raises `NotFound` for an unknown name."""
    rows = await list_of_name(db, skills, tenant_id, name, before=before, limit=limit)
    if not rows and before is None:
        raise no_skill(name, None)
    return rows


async def read_skill(db: Database, tenant_id: UUID, name: str, version: int | None = None) -> Row:
    """Read one version of a skill, the newest by default; raises `NotFound`."""
    row = await read_one(db, skills, tenant_id, name, version)
    if row is None:
        raise no_skill(name, version)
    return row
