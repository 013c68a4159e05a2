"""A tenant to test with: slots, an agent and a key of every role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from harness_common.contracts.agent import AgentSpec
from harness_common.settings import Settings
from harness_common.store import keys
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.connection import Row
from harness_common.store.db import Database
from harness_common.store.postgres import pg

PEPPER = b"a pepper for tests"
ROLES = ("viewer", "operator", "approver", "admin")


@dataclass
class Tenant:
    """A tenant and the texts of its keys, by role."""

    db: Database
    id: UUID
    keys: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[role]}"}

    async def add_role_keys(self) -> None:
        async with self.db.tenant_transaction(self.id) as conn:
            for role in ROLES:
                self.rows[role], self.keys[role] = await keys.insert_key(
                    conn, self.id, PEPPER, keys.NewKey(role, role), self.db.timeout_s
                )

    async def add_key(self, name: str, role: str, scopes: Sequence[str] = (), **more: Any) -> str:
        new = keys.NewKey(name, role, tuple(scopes), **more)
        async with self.db.tenant_transaction(self.id) as conn:
            self.rows[name], self.keys[name] = await keys.insert_key(
                conn, self.id, PEPPER, new, self.db.timeout_s
            )
        return self.keys[name]


async def make_tenant(db: Database, name: str, *, granted: int = 100) -> Tenant:
    async with db.transaction() as conn:
        row = await ensure_tenant(conn, Settings(), name, db.timeout_s)
        await pg(conn).execute(
            "UPDATE tenant_slots SET max_running = %s, granted = %s WHERE tenant_id = %s",
            (granted, granted, row["tenant_id"]),
        )
    made = Tenant(db, row["tenant_id"])
    await made.add_role_keys()
    await put_agent(db, made.id, "a", AgentSpec(max_turns=100), Actor("test"))
    return made
