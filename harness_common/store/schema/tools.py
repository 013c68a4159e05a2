"""Tool calls, and what people decide about them."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, PrimaryKeyConstraint, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from harness_common.store.schema.columns import big, id_, int_, json_, metadata, new_id, text_, when

tool_calls = Table(
    "tool_calls",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("step", None),
    int_("idx", None),
    text_("tool_use_id"),
    text_("name"),
    text_("tool_version", null=True),
    Column("arguments", JSON, nullable=False),
    text_("fingerprint", null=True),
    text_("effect", null=True),
    text_("status"),
    id_("attempt_id", null=True),
    int_("attempt"),
    text_("result", null=True),
    text_("error_type", null=True),
    text_("trust", null=True),
    Column("artifacts", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("duration_ms", Double),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    when("resume_at"),
    json_("kept", None),
    text_("answer", null=True),
    json_("evidence", None),
    int_("authorised", 1),
    json_("resolution", None),
    big("input_tokens"),
    big("output_tokens"),
    when("created_at", now=True),
    when("started_at"),
    when("finished_at"),
    PrimaryKeyConstraint("tenant_id", "run_id", "step", "idx"),
    Index(
        "tool_calls_unknown_idx",
        "tenant_id",
        "run_id",
        postgresql_where=text("status = 'unknown'"),
    ),
)


approvals = Table(
    "approvals",
    metadata,
    id_("tenant_id"),
    new_id(),
    id_("run_id"),
    int_("step", None),
    int_("idx", None),
    text_("digest"),
    text_("status"),
    json_("shown"),
    when("created_at", now=True),
    when("expires_at"),
    when("decided_at"),
    text_("decided_by", null=True),
    text_("reason", null=True),
    PrimaryKeyConstraint("tenant_id", "id"),
    Index("approvals_run_idx", "tenant_id", "run_id"),
)


memories = Table(
    "memories",
    metadata,
    id_("tenant_id"),
    new_id(),
    text_("scope"),
    text_("body"),
    json_("provenance"),
    when("created_at", now=True),
    when("expires_at"),
    PrimaryKeyConstraint("tenant_id", "id"),
)
