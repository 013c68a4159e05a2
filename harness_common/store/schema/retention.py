"""How long things are kept, what is being erased, and which blobs nobody names any more."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint, Index, PrimaryKeyConstraint, Table, text

from harness_common.store.schema.columns import (
    id_,
    int_,
    json_,
    metadata,
    new_id,
    text_,
    when,
)

retention = Table(
    "retention",
    metadata,
    id_("tenant_id"),
    int_("events_days", None, null=True),
    int_("checkpoints_days", None, null=True),
    int_("artifacts_days", None, null=True),
    int_("runs_days", None, null=True),
    when("changed_at", now=True),
    text_("changed_by"),
    PrimaryKeyConstraint("tenant_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Days after the end of a run; null: as the settings say.",
)


erasures = Table(
    "erasures",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("subject"),
    id_("target_tenant"),
    text_("user_id", null=True),
    text_("phase", default="stopping"),
    json_("counts"),
    text_("asked_by"),
    text_("request_id", null=True),
    when("created_at", now=True),
    when("finished_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("erasures_open_idx", "id", postgresql_where=text("finished_at IS NULL")),
    comment="tenant_id is who asked; user_id is forgotten when it is done.",
)


blob_garbage = Table(
    "blob_garbage",
    metadata,
    id_("tenant_id"),
    text_("sha256"),
    when("since", now=True),
    when("look_at", now=True),
    PrimaryKeyConstraint("tenant_id", "sha256"),
    Index("blob_garbage_look_idx", "look_at"),
    comment="Blobs whose artifacts were deleted; each is deleted once no artifact names it.",
)
