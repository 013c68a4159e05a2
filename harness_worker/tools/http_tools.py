"""The tools that tenants declare as data, as a source behind the catalog.

Versions never change, so what was made of one is kept; which version counts is asked anew for each
step, in one statement, so that a change is seen by the next step without a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import httpx

from harness_common.contracts.http_tool import as_definition
from harness_common.contracts.secrets import Secrets
from harness_common.contracts.tool import EffectClass, Tool, ToolContext, ToolOutput, ToolSpec
from harness_common.core.errors import Denied, NotFound, Transient
from harness_common.core.host_rules import HostRules
from harness_common.core.message import Json
from harness_common.store.connection import DatabaseUnavailable, Row
from harness_common.store.db import Database
from harness_worker.egress.client import Egress, TooManyRedirects
from harness_worker.egress.redact import CallSecrets
from harness_worker.egress.transport import Refused
from harness_worker.tools.http_call import HttpCall

_KEPT: Final = 2_000
_Key = tuple[UUID, str, int]


class NoSecrets:
    """Where there is no store of secrets, nobody has any."""

    async def resolve(self, tenant_id: UUID, text: str) -> str:
        """Refuse a reference."""
        del tenant_id
        raise NotFound(f"there is no secret {text}", code="SECRET_NOT_FOUND")


class TenantTools:
    """A `ToolSource` of tools that are rows."""

    def __init__(self, db: Database, egress: Egress, secrets: Secrets | None = None) -> None:
        self._db, self._egress, self._secrets = db, egress, secrets or NoSecrets()
        self._made: OrderedDict[_Key, Tool] = OrderedDict()

    async def find(self, tenant_id: UUID, names: Sequence[str]) -> list[Tool]:
        """Return the tenant's tools of these names. One that is disabled or removed is there and
        refuses, so that an agent which declares it goes on and is told.
        """
        params = {"tenant_id": tenant_id, "names": list(names)}
        rows = await self._db.fetch("tools_current", params)
        missing = [
            row["name"]
            for row in rows
            if row["usable"] and (tenant_id, row["name"], row["version"]) not in self._made
        ]
        if missing:
            await self._load(tenant_id, missing)
        return [tool for row in rows if (tool := self._tool(tenant_id, row)) is not None]

    async def _load(self, tenant_id: UUID, names: list[str]) -> None:
        rows = await self._db.fetch("tools_load", {"tenant_id": tenant_id, "names": names})
        for row in rows:
            self._made[tenant_id, row["name"], row["version"]] = self._make(tenant_id, row)
        while len(self._made) > _KEPT:
            self._made.popitem(last=False)

    def _tool(self, tenant_id: UUID, row: Row) -> Tool | None:
        if not row["usable"]:
            return _refusing(row)
        key = (tenant_id, row["name"], row["version"])
        found = self._made.get(key)
        if found is not None:
            self._made.move_to_end(key)
        return found

    def _make(self, tenant_id: UUID, row: Row) -> Tool:
        definition = as_definition(row["definition"])
        call = HttpCall(definition)

        async def run(ctx: ToolContext, /, **arguments: Json) -> ToolOutput:
            return await self._run(tenant_id, call, ctx, arguments)

        return Tool(definition.spec(row["version"]), run)

    async def _run(
        self, tenant_id: UUID, call: HttpCall, ctx: ToolContext, arguments: dict[str, Json]
    ) -> ToolOutput:
        """Make one call. Secrets exist from here to the end of this function."""
        hide = CallSecrets()
        try:
            secrets = {
                reference: await self._secrets.resolve(tenant_id, reference)
                for reference in call.secrets
            }
            hide = CallSecrets(secrets.values())
            answer = await self._egress.send(tenant_id, call.ask(ctx, arguments, secrets))
        except DatabaseUnavailable as problem:
            # Only what comes before the request asks Postgres: of a write, nothing happened.
            raise Transient(
                f"Tool {call.name!r}: nothing was sent, as the platform could not read its own "
                "settings. Try again later.",
                code="NOT_SENT",
                tool=call.name,
            ) from problem
        except (Refused, TooManyRedirects, httpx.HTTPError) as problem:
            call.fail(problem, hide)
        return call.result(answer, hide)


def _refusing(row: Row) -> Tool:
    """Make a tool that says that it is not to be used now."""
    state = "removed" if row["removed"] else "disabled"

    async def refuse(ctx: ToolContext, /, **arguments: Any) -> ToolOutput:
        del ctx, arguments
        raise Denied(
            f"the tool was {state}; use another one",
            code=f"TOOL_{state.upper()}",
            tool=row["name"],
        )

    description = f"Not available: {state}. Do not call it."
    spec = ToolSpec(
        row["name"],
        description,
        {"type": "object", "additionalProperties": True},
        EffectClass.READ,
        version=str(row["version"]),
    )
    return Tool(spec, refuse)


async def rules_of(db: Database, tenant_id: UUID) -> HostRules:
    """Read where a tenant's requests may go."""
    row = await db.fetch_one("egress_read", {"tenant_id": tenant_id})
    return HostRules() if row is None else HostRules(tuple(row["allow"]), tuple(row["deny"]))
