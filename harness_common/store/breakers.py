"""Reading the breakers of a tenant's tools for people, and closing one by hand.

Used by the API; the workers have their own statements.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import case, delete, func, select

from harness_common.core.errors import NotFound
from harness_common.core.fallback import MODEL_PREFIX
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import tool_breakers


async def list_breakers(db: Database, tenant_id: UUID, *, models: bool = False) -> list[Row]:
    """Return the tools (or models) that failed lately, those whose breaker is open first.

    `shown` is open, half_open (one call tries the tool now) or closed (faults are counted).
    """
    b = tool_breakers.c
    shown = case(
        (b.state != "open", "closed"), (b.probe_until > func.clock_timestamp(), "half_open"),
        else_="open",
    )  # fmt: skip
    query = (
        select(tool_breakers, shown.label("shown"))
        .where(b.tenant_id == tenant_id, b.tool.startswith(MODEL_PREFIX, autoescape=True) == models)
        .order_by(b.state.desc(), b.tool)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)


async def reset_breaker(db: Database, tenant_id: UUID, tool: str, *, actor: Actor) -> Row:
    """Forget the faults of a tool or model, so that it is called again at once; returns what was
    known.

    Raises `NotFound` when nothing is known of it.
    """
    kind = "model" if tool.startswith(MODEL_PREFIX) else "tool"
    name = tool.removeprefix(MODEL_PREFIX)
    b = tool_breakers.c
    query = delete(tool_breakers).where(b.tenant_id == tenant_id, b.tool == tool)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query.returning(tool_breakers), db.timeout_s)
        if not rows:
            raise NotFound(
                f"no faults of a {kind} {name[:64]!r} are known; "
                f"`harness {kind}s breakers` lists them",
                field=kind,
                value=name[:64],
            )
        entry = Entry(f"{kind}.breaker_reset", name, {"was": rows[0]["state"]})
        record(conn, tenant_id, actor, entry)
    return rows[0]
