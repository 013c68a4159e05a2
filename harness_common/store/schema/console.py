"""What the console keeps."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, PrimaryKeyConstraint, Table, UniqueConstraint

from harness_common.store.schema.columns import flag, id_, metadata, new_id, text_, when

console_views = Table(
    "console_views",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("page"),
    text_("name"),
    text_("query"),
    text_("created_by"),
    flag("shared"),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    UniqueConstraint("tenant_id", "page", "created_by", "name"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Filters of a list under a name: one's own, or shared with the tenant.",
)
