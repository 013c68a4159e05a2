"""Saved views: the filters of a list under a name, one's own or shared with the tenant."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from harness_common.core.errors import Invalid, NotFound
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database

MOST: Final = 100
"""Views of one page that a person sees; the list is short, so that it stays one."""


async def list_views(db: Database, tenant_id: UUID, page: str, by: str) -> list[Row]:
    """Return the views of a page that `by` may see, by name."""
    params = {"tenant_id": tenant_id, "page": page, "by": by}
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_sql(conn, "views_list", params, db.timeout_s)


async def save_view(
    db: Database, tenant_id: UUID, page: str, name: str, query: str, *, by: str, shared: bool
) -> None:
    """Save a view; one's own of the same name is replaced. Raises `Invalid`."""
    name = " ".join(name.split())
    if not 0 < len(name) <= 60:
        raise Invalid("a view needs a name of 1 to 60 characters", field="name", value=name[:100])
    if len(query) > 2_000:
        raise Invalid("these filters are too long to be saved", field="query", limit=2_000)
    params = {
        "tenant_id": tenant_id, "page": page, "name": name, "query": query, "by": by,
        "shared": shared,
    }  # fmt: skip
    async with db.tenant_transaction(tenant_id) as conn:
        seen = await run_sql(conn, "views_list", params, db.timeout_s)
        if len(seen) >= MOST:
            raise Invalid(f"there are {MOST} views already; delete one", limit=MOST)
        await run_sql(conn, "view_save", params, db.timeout_s)


async def delete_view(db: Database, tenant_id: UUID, view_id: UUID, *, by: str) -> str:
    """Delete one's own view and return its name; raises `NotFound`."""
    params = {"tenant_id": tenant_id, "id": view_id, "by": by}
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "view_delete", params, db.timeout_s)
    if not rows:
        raise NotFound("no saved view of yours has this id")
    name: str = rows[0]["name"]
    return name
