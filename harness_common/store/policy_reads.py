"""What the API shows of policies, and the derivation of a decision that was made."""

from __future__ import annotations

import re
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select

from harness_common.core.errors import NotFound
from harness_common.core.policy import (
    NO_POLICY,
    Decision,
    Facts,
    Policies,
    Policy,
    decide,
    digest_of,
)
from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.policies import TENANT, read_version
from harness_common.store.schema import policies

_VERSIONS: Final = re.compile(r"tenant@([0-9]+) agent@([0-9]+) builtin@[0-9]+")


async def list_policies(
    db: Database, tenant_id: UUID, agent_name: str, *, before: int | None = None, limit: int
) -> list[Row]:
    """Return the versions of a policy, newest first."""
    query = select(policies).where(
        policies.c.tenant_id == tenant_id, policies.c.agent_name == agent_name
    )
    if before is not None:
        query = query.where(policies.c.version < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(
            conn, query.order_by(policies.c.version.desc()).limit(limit), db.timeout_s
        )


async def read_policy_row(
    db: Database, tenant_id: UUID, agent_name: str, version: int | None = None
) -> Row:
    """Read one version, the newest by default; version 0 when there is none. Raises `NotFound` for
    a version that does not exist.
    """
    before = None if version is None else version + 1
    rows = await list_policies(db, tenant_id, agent_name, before=before, limit=1)
    if rows and version in {None, rows[0]["version"]}:
        return rows[0]
    if version is None:
        return {
            "agent_name": agent_name, "version": 0, "source": "", "rules": {}, "digest": "",
            "created_at": None, "created_by": "",
        }  # fmt: skip
    of = f"agent {agent_name!r}" if agent_name else "the tenant"
    raise NotFound(
        f"the policy of {of} has no version {version}; `harness policy versions` lists them",
        code="POLICY_NOT_FOUND",
        field="version",
        value=version,
    )


async def newest_policies(db: Database, tenant_id: UUID, agent_name: str) -> Policies:
    """Read what applies now to the runs of an agent."""
    tenant = await read_policy_row(db, tenant_id, TENANT)
    agent = NO_POLICY
    if agent_name != TENANT:
        row = await read_policy_row(db, tenant_id, agent_name)
        agent = await _version(db, tenant_id, agent_name, row["version"])
    return Policies(await _version(db, tenant_id, TENANT, tenant["version"]), agent)


async def _version(db: Database, tenant_id: UUID, agent_name: str, version: int) -> Policy:
    return NO_POLICY if version == 0 else await read_version(db, tenant_id, agent_name, version)


async def decided(db: Database, tenant_id: UUID, call: Row) -> tuple[dict[str, Any], Decision]:
    """Return the decision that is recorded with a call, and the same derived again from its facts
    and the versions that applied, none of which ever change. Raises `NotFound` when policy was not
    asked.
    """
    stored = call["policy"]
    if stored is None or stored.get("facts") is None:
        raise NotFound(
            f"policy was not asked about this call ({call['status']}): it has not come that far, "
            "or it was refused before (no such tool, wrong arguments)",
            code="NOT_DECIDED",
            field="call",
            value=f"{call['step']}.{call['idx']}",
        )
    facts = Facts.from_json(stored["facts"], _judged(stored["facts"], call))
    found = _VERSIONS.fullmatch(stored["version"])
    assert found is not None, stored["version"]
    applied = Policies(
        await _version(db, tenant_id, TENANT, int(found[1])),
        await _version(db, tenant_id, facts.agent, int(found[2])),
    )
    return stored, decide(facts, applied)


def _judged(facts: dict[str, Any], call: Row) -> Any:  # noqa: ANN401 - a column
    """Return the arguments that were decided about: those that a person changed, or the model's."""
    ran = call.get("ran_arguments")
    changed = ran is not None and digest_of(ran) == facts.get("arguments")
    return ran if changed else call["arguments"]
