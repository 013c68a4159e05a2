"""Policies in Postgres: versions that never change, and what a worker reads of them once a step.

The API sets and shows them; workers ask `read_facts` and keep the versions they have seen
(`PolicyCache`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from harness_common.contracts.policy import parse_policy, read_policy
from harness_common.core.errors import Conflict, Invalid, Transient
from harness_common.core.policy import NO_POLICY, Policies, Policy
from harness_common.core.taint import ALL_MARKS
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun

TENANT: Final = ""
"""The agent name of the policy that is the whole tenant's."""
_TRIES: Final = 5
_CACHED: Final = 1_000


async def put_policy(
    db: Database, tenant_id: UUID, agent_name: str, source: str, actor: Actor
) -> tuple[Row, bool]:
    """Add a version of a policy, unless its newest one is the same; return it and whether it is
    new. Raises `Invalid` with the pointer of each mistake.
    """
    # Its size is the caller's, and a long one takes seconds.
    spec = await asyncio.to_thread(parse_policy, source, for_agent=agent_name != TENANT)
    params = {
        "tenant_id": tenant_id,
        "agent_name": agent_name,
        "source": source,
        "rules": json_codec.dumps_text(spec.model_dump(mode="json", exclude_none=True)),
        "digest": spec.digest(),
        "created_by": actor.name,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        for _ in range(_TRIES):
            rows = await run_sql(conn, "policy_put", params, db.timeout_s)
            if not rows:  # somebody else made the same version number meanwhile
                continue
            row = rows[0]
            if row["made"]:
                target = f"{agent_name or 'tenant'}@{row['version']}"
                detail = {"digest": row["digest"], "rules": len(spec.rules)}
                record(conn, tenant_id, actor, Entry("policy.put", target, detail))
            return row, row["made"]
    raise Conflict("others keep changing this policy; try again", field="agent", value=agent_name)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What policy knows of a run beside its calls."""

    policies: Policies = field(default_factory=Policies)
    principal: str = ""
    role: str | None = None
    earlier_marks: frozenset[str] = frozenset()
    """What the session's earlier runs have touched."""
    left_usd: float | None = None


@dataclass(slots=True)
class PolicyCache:
    """The versions of policies that this process has read. They never change, so they are kept."""

    _known: OrderedDict[tuple[UUID, str, int], Policy] = field(default_factory=OrderedDict)

    async def facts(self, db: Database, run: StoredRun) -> RunFacts:
        """Read what applies to a run now: one statement, and one for each version not yet known."""
        row = await db.fetch_one(
            "policy_facts",
            {
                "tenant_id": run.tenant_id,
                "run_id": run.id,
                "prev_run_id": run.prev_run_id,
                "agent_name": run.acting.name,
            },
        )
        assert row is not None
        key = (db, run.tenant_id)
        policies = Policies(
            tenant=await self._policy(*key, TENANT, row["tenant_version"]),
            agent=await self._policy(*key, run.acting.name, row["agent_version"]),
        )
        return RunFacts(
            policies,
            row["principal"],
            row["role"],
            frozenset(row["marks"]) & ALL_MARKS,
            row["left_usd"],
        )

    async def _policy(self, db: Database, tenant_id: UUID, name: str, version: int) -> Policy:
        if version == 0:
            return NO_POLICY
        key = (tenant_id, name, version)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = await read_version(db, tenant_id, name, version)
        self._known.move_to_end(key)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return found


async def read_version(db: Database, tenant_id: UUID, name: str, version: int) -> Policy:
    """Read one version as `core.policy` takes it.

    Raises `Transient` when this process cannot read what a newer one has written: nothing is
    allowed by rules that are not understood.
    """
    params = {"tenant_id": tenant_id, "agent_name": name, "version": version}
    async with db.tenant_transaction(tenant_id) as conn:
        (row,) = await run_sql(conn, "policy_read", params, db.timeout_s)
    try:
        return read_policy(row["rules"], for_agent=name != TENANT).compiled(version)
    except Invalid as error:
        raise Transient(
            f"policy {name or 'tenant'}@{version} is not readable here: {error.message}",
            code="POLICY_UNREADABLE",
        ) from error
