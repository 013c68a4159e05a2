"""How many repairs answers took: what the statistics are made of, long after their events."""

from __future__ import annotations

from sqlalchemy import Index, PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, json_, metadata, text_, when

repairs = Table(
    "repairs",
    metadata,
    id_("tenant_id"),
    id_("run_id"),
    int_("step", None),
    text_("agent"),
    text_("model"),
    json_("kinds"),
    when("at", now=True),
    PrimaryKeyConstraint("tenant_id", "run_id", "step"),
    Index("repairs_at_idx", "tenant_id", "at"),
    comment="Repairs of one answer by kind: numbers only, what was said is in its event.",
)
"""How many of each kind; one row for a step, however often it is attempted."""
