"""What other frameworks keep of a run: their checkpoints and the writes of their tasks."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKeyConstraint, Index, LargeBinary, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, json_, metadata, text_, when

foreign_checkpoints = Table(
    "foreign_checkpoints",
    metadata,
    id_("tenant_id"),
    text_("thread"),
    text_("ns"),
    text_("checkpoint_id"),
    text_("parent_id", null=True),
    text_("run_key", null=True),
    text_("kind"),
    Column("snapshot", LargeBinary, nullable=False),
    json_("payload"),
    when("created_at", now=True),
    PrimaryKeyConstraint("tenant_id", "thread", "ns", "checkpoint_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index("foreign_checkpoints_run_idx", "tenant_id", "run_key"),
    comment="`thread` is the run in hex; `snapshot` is compressed and sealed.",
)

foreign_writes = Table(
    "foreign_writes",
    metadata,
    id_("tenant_id"),
    text_("thread"),
    text_("ns"),
    text_("checkpoint_id"),
    text_("task_id"),
    int_("idx", None),
    text_("task_path"),
    text_("channel"),
    text_("kind"),
    Column("snapshot", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "thread", "ns", "checkpoint_id", "task_id", "idx"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="What a task of a superstep gave, kept before the superstep is over.",
)
