"""Scheduling and control: limits as data, turns, throttles, pauses, children, forks, resolutions.

Expand only: every column has a default or may be null, so that the code before it goes on working.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_QUEUED = "status = 'queued' AND held_for IS NULL"
_HELD = "status = 'queued' AND held_for = 'key'"
_BEHIND = "status = 'queued' AND held_for = 'session'"
_KEYED = (
    "concurrency_key IS NOT NULL AND "
    "(status = 'running' OR (status = 'queued' AND held_for IS NULL))"
)
_CHILD = "parent_run_id IS NOT NULL"


def _when(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=True)


def _count(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.Column[Any]:
    return sa.Column(name, kind, server_default=sa.text("0"), nullable=False)


def _flag(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean(), server_default=sa.text("false"), nullable=False)


def _rates() -> list[sa.Column[Any]]:
    """Make the limits that a tenant and the whole platform may have; null is no limit."""
    return [
        sa.Column("starts_per_s", sa.Double(), nullable=True),
        sa.Column("steps_per_s", sa.Double(), nullable=True),
        sa.Column("tokens_per_day", sa.BigInteger(), nullable=True),
        sa.Column("cost_usd_per_day", sa.Double(), nullable=True),
        _when("starts_tat"),
        _when("steps_tat"),
        _when("places_tat"),
    ]


def upgrade() -> None:
    """Expand."""
    op.add_column("tenants", _flag("operator"))
    op.execute("UPDATE tenants SET operator = true WHERE name = 'default'")
    slots: list[sa.Column[Any]] = [
        sa.Column("weight", sa.Double(), server_default=sa.text("1"), nullable=False),
        _count("used_s", sa.Double),
        _count("turn_sum", sa.Double),
        _flag("crowded"),
        *_rates(),
    ]
    for column in slots:
        op.add_column("tenant_slots", column)
    op.create_table(
        "platform",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        *_rates(),
        sa.PrimaryKeyConstraint("name", name=op.f("platform_pkey")),
        comment="Limits over all tenants: one row; tenant-less on purpose.",
    )
    op.execute("INSERT INTO platform (name) VALUES ('global')")
    op.create_table(
        "tenant_days",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        _count("tokens", sa.BigInteger),
        _count("cost_usd", sa.Double),
        _count("reserved_tokens", sa.BigInteger),
        _count("reserved_usd", sa.Double),
        sa.PrimaryKeyConstraint("tenant_id", "day", name=op.f("tenant_days_pkey")),
        comment="What a tenant with a daily limit used and has reserved; the nil UUID is the platform.",
    )
    op.create_table(
        "throttles",
        sa.Column("scope", sa.Text(), nullable=False),
        _when("until"),
        _when("next_at"),
        _count("interval_s", sa.Double),
        sa.Column("limit_per_s", sa.Double(), nullable=True),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        _count("hits", sa.Integer),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("scope", name=op.f("throttles_pkey")),
        comment="What a provider told us to slow down, for all who share it; tenant-less on purpose.",
    )
    runs: list[sa.Column[Any]] = [
        _flag("pause_requested"),
        sa.Column("waiting", postgresql.JSONB(none_as_null=True), nullable=True),
        _when("turn_at"),
        sa.Column("held_for", sa.Text(), nullable=True),
        sa.Column("concurrency_key", sa.Text(), nullable=True),
        sa.Column("concurrency_max", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("parent_run_id", sa.Uuid(), nullable=True),
        sa.Column("parent_step", sa.Integer(), nullable=True),
        sa.Column("parent_idx", sa.Integer(), nullable=True),
        _count("depth", sa.Integer),
        sa.Column(
            "overrides",
            postgresql.JSONB(none_as_null=True),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        _count("reserved_tokens", sa.BigInteger),
        _count("reserved_usd", sa.Double),
        sa.Column("reserved_day", sa.Date(), nullable=True),
    ]
    for column in runs:
        op.add_column("runs", column)
    op.execute("UPDATE runs SET turn_at = clock_timestamp() WHERE status = 'running'")
    op.execute("UPDATE tenant_slots SET turn_sum = running * extract(epoch FROM clock_timestamp())")
    op.drop_index("runs_queue_idx", table_name="runs")
    op.create_index(
        "runs_queue_idx",
        "runs",
        ["tenant_id", "queue", "started", "priority", "queued_at"],
        postgresql_where=sa.text(_QUEUED),
    )
    op.create_index(
        "runs_held_idx",
        "runs",
        ["tenant_id", "concurrency_key", "queued_at"],
        postgresql_where=sa.text(_HELD),
    )
    op.create_index(
        "runs_behind_idx",
        "runs",
        ["tenant_id", "prev_run_id"],
        postgresql_where=sa.text(_BEHIND),
    )
    op.create_index(
        "runs_keyed_idx",
        "runs",
        ["tenant_id", "concurrency_key"],
        postgresql_where=sa.text(_KEYED),
    )
    op.create_index(
        "runs_parent_idx",
        "runs",
        ["tenant_id", "parent_run_id", "parent_step", "parent_idx"],
        unique=True,
        postgresql_where=sa.text(_CHILD),
    )
    op.create_index(
        "runs_live_children_idx",
        "runs",
        ["tenant_id", "parent_run_id"],
        postgresql_where=sa.text(f"{_CHILD} AND finished_at IS NULL"),
    )
    op.create_index(
        "runs_forked_idx",
        "runs",
        ["tenant_id", "forked_from"],
        postgresql_where=sa.text("forked_from IS NOT NULL"),
    )
    calls: list[sa.Column[Any]] = [
        sa.Column("authorised", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("resolution", postgresql.JSONB(none_as_null=True), nullable=True),
        _count("input_tokens", sa.BigInteger),
        _count("output_tokens", sa.BigInteger),
    ]
    for column in calls:
        op.add_column("tool_calls", column)
    op.create_index(
        "tool_calls_unknown_idx",
        "tool_calls",
        ["tenant_id", "run_id"],
        postgresql_where=sa.text("status = 'unknown'"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_index("tool_calls_unknown_idx", table_name="tool_calls")
    op.drop_index("runs_forked_idx", table_name="runs")
    for name in ("authorised", "resolution", "input_tokens", "output_tokens"):
        op.drop_column("tool_calls", name)
    for name in ("live_children", "parent", "keyed", "behind", "held", "queue"):
        op.drop_index(f"runs_{name}_idx", table_name="runs")
    for name in (
        "pause_requested", "waiting", "turn_at", "held_for", "concurrency_key", "concurrency_max",
        "parent_run_id", "parent_step", "parent_idx", "depth", "overrides",
        "reserved_tokens", "reserved_usd", "reserved_day",
    ):  # fmt: skip
        op.drop_column("runs", name)
    op.create_index(
        "runs_queue_idx",
        "runs",
        ["tenant_id", "priority", "queued_at"],
        postgresql_where=sa.text("status = 'queued'"),
    )
    for name in ("throttles", "tenant_days", "platform"):
        op.drop_table(name)
    for name in (
        "weight", "used_s", "turn_sum", "starts_per_s", "steps_per_s", "tokens_per_day",
        "cost_usd_per_day", "starts_tat", "steps_tat", "places_tat", "crowded",
    ):  # fmt: skip
        op.drop_column("tenant_slots", name)
    op.drop_column("tenants", "operator")
