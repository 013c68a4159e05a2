"""Agents: named definitions, each change of which is a new version. Used by the API; runs pin a
version.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import select

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.output import check_output_schema
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import agents
from harness_common.store.versions import list_newest, list_of_name, read_one

_TRIES: Final = 5


async def put_agent(
    db: Database, tenant_id: UUID, name: str, spec: AgentSpec, actor: Actor
) -> tuple[Row, bool]:
    """Add a version of an agent, unless its newest one is the same; return the version and whether
    it is new. Raises `Invalid` for an `output_schema` that is none, and for what an agent of its
    kind cannot be held to.
    """
    check_output_schema(spec.output_schema)
    if idle := spec.not_held_to():
        raise Invalid(
            f"Harness does not hold an agent of kind {spec.kind} to {', '.join(idle)}: say it in "
            "the framework",
            field=idle[0],
        )
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
            rows = await run_sql(conn, "agent_put", params, db.timeout_s)
            if not rows:  # somebody else made the same version number meanwhile
                continue
            row = rows[0]
            if row["made"]:
                target = f"{name}@{row['version']}"
                record(conn, tenant_id, actor, Entry("agent.put", target, {"digest": digest}))
            return row, row["made"]
    raise Conflict("others keep changing this agent; try again", field="name", value=name)


async def list_agents(
    db: Database, tenant_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return the newest version of each agent, last changed first, of those made before the version
    `before`.
    """
    return await list_newest(db, agents, tenant_id, before=before, limit=limit)


async def list_agent_names(db: Database, tenant_id: UUID, *, limit: int) -> list[str]:
    """Return the names of agents, in order: to choose from, without their definitions."""
    c = agents.c
    query = select(c.name).where(c.tenant_id == tenant_id).distinct().order_by(c.name).limit(limit)
    async with db.tenant_transaction(tenant_id) as conn:
        return [row["name"] for row in await run_core(conn, query, db.timeout_s)]


async def list_versions(
    db: Database, tenant_id: UUID, name: str, *, before: int | None, limit: int
) -> list[Row]:
    """Return the versions of an agent, newest first; raises `NotFound` for an unknown name."""
    rows = await list_of_name(db, agents, tenant_id, name, before=before, limit=limit)
    if not rows and before is None:
        raise _no_agent(name, None)
    return rows


async def read_agent(db: Database, tenant_id: UUID, name: str, version: int | None = None) -> Row:
    """Read one version of an agent, the newest by default; raises `NotFound`."""
    row = await read_one(db, agents, tenant_id, name, version)
    if row is None:
        raise _no_agent(name, version)
    return row


def _no_agent(name: str, version: int | None) -> NotFound:
    which = f" version {version}" if version is not None else ""
    return NotFound(f"no agent {name!r}{which}", code="AGENT_NOT_FOUND", field="name", value=name)
