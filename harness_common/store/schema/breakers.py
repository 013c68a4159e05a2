"""Which tools fail now, for which tenant."""

from __future__ import annotations

from sqlalchemy import PrimaryKeyConstraint, Table

from harness_common.store.schema.columns import id_, int_, metadata, text_, when

tool_breakers = Table(
    "tool_breakers",
    metadata,
    id_("tenant_id"),
    text_("tool"),
    text_("state"),
    int_("failures"),
    int_("successes"),
    when("window_at", now=True),
    int_("opens"),
    id_("opened_by", null=True),
    when("opened_at"),
    when("until"),
    id_("probe_id", null=True),
    when("probe_until"),
    text_("reason"),
    when("updated_at", now=True),
    PrimaryKeyConstraint("tenant_id", "tool"),
    comment="Tools that failed lately, per tenant; one without a row is well.",
)
