"""Webhooks of a tenant and what became of their deliveries. Used by the API; the scheduler's loop
has statements of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, insert, select, update

from harness_common.core.errors import Conflict, Limited, NotFound
from harness_common.core.ids import encode
from harness_common.core.webhook import TEST
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import webhook_deliveries, webhooks

MAX_WEBHOOKS: Final = 100
_NOW: Final = func.clock_timestamp()


async def add_webhook(
    db: Database, tenant_id: UUID, url: str, types: Sequence[str], actor: Actor
) -> Row:
    """Add a webhook; what happens from now on is told."""
    counted = select(func.count().label("n")).where(webhooks.c.tenant_id == tenant_id)
    values = {"tenant_id": tenant_id, "url": url, "types": sorted(set(types))}
    add = insert(webhooks).values(**values, created_by=actor.name).returning(webhooks)
    async with db.tenant_transaction(tenant_id) as conn:
        if (await run_core(conn, counted, db.timeout_s))[0]["n"] >= MAX_WEBHOOKS:
            raise Limited(f"a tenant has {MAX_WEBHOOKS} webhooks at most", code="TOO_MANY_WEBHOOKS")
        row = (await run_core(conn, add, db.timeout_s))[0]
        _note(conn, tenant_id, row["id"], "add", actor)
    return row


async def read_webhook(db: Database, tenant_id: UUID, webhook_id: UUID) -> Row:
    """Read a webhook; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        return await _read(conn, tenant_id, webhook_id, db.timeout_s, hold=False)


async def list_webhooks(db: Database, tenant_id: UUID) -> list[Row]:
    """Return a tenant's webhooks, newest first."""
    query = select(webhooks).where(webhooks.c.tenant_id == tenant_id)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(webhooks.c.id.desc()), db.timeout_s)


async def remove_webhook(db: Database, tenant_id: UUID, webhook_id: UUID, actor: Actor) -> None:
    """Take a webhook away with all that waits for it."""
    mine = (webhooks.c.tenant_id == tenant_id) & (webhooks.c.id == webhook_id)
    async with db.tenant_transaction(tenant_id) as conn:
        await _read(conn, tenant_id, webhook_id, db.timeout_s)
        await run_core(conn, webhooks.delete().where(mine), db.timeout_s)
        _note(conn, tenant_id, webhook_id, "remove", actor)


async def set_webhook(
    db: Database, tenant_id: UUID, webhook_id: UUID, actor: Actor, *, disabled: bool
) -> Row:
    """Disable a webhook, whose deliveries are held then, or enable it and let them go."""
    values: dict[str, Any] = {"disabled_at": None, "disabled_why": None, "failures": 0}
    if disabled:
        values = {"disabled_at": _NOW, "disabled_why": f"by {actor.name}"}
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, webhook_id, db.timeout_s)
        if (row["disabled_at"] is not None) == disabled:
            return row
        row = await _change(conn, tenant_id, webhook_id, db.timeout_s, values)
        hold = {"tenant_id": tenant_id, "webhook_id": webhook_id}
        await run_sql(conn, "webhook_hold", hold, db.timeout_s)
        verb = "disable" if disabled else "enable"
        _note(conn, tenant_id, webhook_id, verb, actor)
        return row


async def rotate_secret(db: Database, tenant_id: UUID, webhook_id: UUID, actor: Actor) -> Row:
    """Go over to the next signing secret; for a day the one before it signs as well."""
    async with db.tenant_transaction(tenant_id) as conn:
        await _read(conn, tenant_id, webhook_id, db.timeout_s)
        values = {"secret_n": webhooks.c.secret_n + 1, "rotated_at": _NOW}
        row = await _change(conn, tenant_id, webhook_id, db.timeout_s, values)
        _note(conn, tenant_id, webhook_id, "rotate", actor)
        return row


async def send_test(db: Database, tenant_id: UUID, webhook_id: UUID) -> Row:
    """Queue a delivery of the type `webhook.test`; refused for a disabled webhook."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, webhook_id, db.timeout_s)
        if row["disabled_at"] is not None:
            raise Conflict("the webhook is disabled; enable it first", code="WEBHOOK_DISABLED")
        values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "type": TEST}
        add = (
            insert(webhook_deliveries)
            .values(**values, status="pending", next_at=_NOW)
            .returning(webhook_deliveries)
        )
        return (await run_core(conn, add, db.timeout_s))[0]


async def list_deliveries(
    db: Database, tenant_id: UUID, webhook_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return the deliveries of a webhook, newest first; raises `NotFound`."""
    table = webhook_deliveries
    query = select(table).where(table.c.tenant_id == tenant_id, table.c.webhook_id == webhook_id)
    if before is not None:
        query = query.where(table.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        await _read(conn, tenant_id, webhook_id, db.timeout_s, hold=False)
        return await run_core(conn, query.order_by(table.c.id.desc()).limit(limit), db.timeout_s)


async def redeliver(
    db: Database, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID, actor: Actor
) -> Row:
    """Send a delivery once more, under the same id and with all its attempts before it."""
    table = webhook_deliveries
    again = (
        update(table)
        .where(
            table.c.tenant_id == tenant_id,
            table.c.webhook_id == webhook_id,
            table.c.id == delivery_id,
        )
        .values(status="pending", attempt=0, next_at=_NOW, error=None, response_status=None)
        .returning(table)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, webhook_id, db.timeout_s)
        if row["disabled_at"] is not None:
            raise Conflict("the webhook is disabled; enable it first", code="WEBHOOK_DISABLED")
        rows = await run_core(conn, again, db.timeout_s)
        if not rows:
            raise NotFound("the webhook has no such delivery", field="delivery_id")
        _note(conn, tenant_id, webhook_id, "redeliver", actor)
        return rows[0]


async def _read(
    conn: Connection, tenant_id: UUID, webhook_id: UUID, timeout_s: float, *, hold: bool = True
) -> Row:
    """Read a webhook, and `hold` it until the transaction ends; raises `NotFound`."""
    mine = (webhooks.c.tenant_id == tenant_id) & (webhooks.c.id == webhook_id)
    query = select(webhooks).where(mine)
    if hold:
        # Not FOR UPDATE: events are queued for a webhook meanwhile, with a reference to its row.
        query = query.with_for_update(key_share=True)
    rows = await run_core(conn, query, timeout_s)
    if not rows:
        raise NotFound("the tenant has no such webhook", field="webhook_id")
    return rows[0]


async def _change(
    conn: Connection, tenant_id: UUID, webhook_id: UUID, timeout_s: float, values: dict[str, Any]
) -> Row:
    mine = (webhooks.c.tenant_id == tenant_id) & (webhooks.c.id == webhook_id)
    change = update(webhooks).where(mine).values(**values).returning(webhooks)
    return (await run_core(conn, change, timeout_s))[0]


def _note(conn: Connection, tenant_id: UUID, webhook_id: UUID, verb: str, actor: Actor) -> None:
    entry = Entry(f"webhook.{verb}", encode("webhook", webhook_id))
    record(conn, tenant_id, actor, entry)
