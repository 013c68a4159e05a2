"""Tools that tenants declare, the tools that workers have, the hosts that requests may go to; and
webhooks, whose deliveries a trigger queues in the transaction of the event.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")
_NONE = sa.text("'{}'::text[]")


def _time(name: str, *, null: bool = False) -> sa.Column[object]:
    default = None if null else _NOW
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=null)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


QUEUE_WEBHOOKS = """
CREATE FUNCTION queue_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_deliveries (tenant_id, webhook_id, type, run_id, seq, body, status, next_at)
    SELECT NEW.tenant_id, w.id, k.type, NEW.run_id, NEW.seq, NEW.payload,
           CASE WHEN w.disabled_at IS NULL THEN 'pending' ELSE 'held' END, clock_timestamp()
    FROM webhooks w, (VALUES
        (CASE NEW.type WHEN 'run.completed' THEN 'run.succeeded' ELSE NEW.type END),
        -- The payload may be encrypted; the run, which the same statement wrote, says why it ended.
        (CASE WHEN NEW.type = 'run.failed' AND (
            SELECT r.stop_reason FROM runs r WHERE r.tenant_id = NEW.tenant_id AND r.id = NEW.run_id
         ) LIKE '%budget_exceeded' THEN 'budget.exceeded' END)
    ) AS k (type)
    WHERE w.tenant_id = NEW.tenant_id AND k.type = ANY(w.types);
    RETURN NULL;
END $$
"""
TRIGGER = """
CREATE TRIGGER events_webhooks AFTER INSERT ON events FOR EACH ROW
WHEN (NEW.type IN ('run.completed', 'run.failed', 'run.cancelled', 'approval.requested'))
EXECUTE FUNCTION queue_webhooks()
"""
"""Written with the event or not at all; all other events cost the comparison of a name."""


def _webhooks() -> None:
    for column in (
        sa.Column("disabled_why", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("secret_n", sa.Integer(), server_default=sa.text("1"), nullable=False),
        _time("rotated_at", null=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
    ):
        op.add_column("webhooks", column)
    op.create_table_comment(
        "webhooks",
        "Whom to tell; a trigger on events queues the deliveries in the same transaction.",
    )
    for added in (
        sa.Column("type", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=True),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _time("delivered_at", null=True),
    ):
        op.add_column("webhook_deliveries", added)
    op.create_foreign_key(
        op.f("webhook_deliveries_tenant_id_webhook_id_fkey"),
        "webhook_deliveries",
        "webhooks",
        ["tenant_id", "webhook_id"],
        ["tenant_id", "id"],
        ondelete="CASCADE",
    )
    op.create_index(
        "webhook_deliveries_due_idx",
        "webhook_deliveries",
        ["next_at"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "webhook_deliveries_hook_idx", "webhook_deliveries", ["tenant_id", "webhook_id", "id"]
    )
    op.create_index("webhook_deliveries_created_at_idx", "webhook_deliveries", ["created_at"])
    op.execute(QUEUE_WEBHOOKS)
    op.execute(TRIGGER)


def upgrade() -> None:
    """Expand."""
    _webhooks()
    array = postgresql.ARRAY(sa.Text())
    op.create_table(
        "tenant_tools",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuid7()"), nullable=False),
        _text("name"),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _text("kind"),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _time("removed_at", null=True),
        _time("created_at"),
        _time("changed_at"),
        _text("changed_by"),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("tenant_tools_pkey")),
        sa.UniqueConstraint("tenant_id", "id", name=op.f("tenant_tools_tenant_id_id_key")),
        comment="A tenant's tools and the version of each that counts; a removed one keeps its number.",
    )
    op.create_table(
        "tool_versions",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        _text("name"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("definition", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        _text("digest"),
        _time("created_at"),
        _text("created_by"),
        sa.PrimaryKeyConstraint("tenant_id", "name", "version", name=op.f("tool_versions_pkey")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "name"],
            ["tenant_tools.tenant_id", "tenant_tools.name"],
            name=op.f("tool_versions_tenant_id_name_fkey"),
            ondelete="CASCADE",
        ),
        comment="Never changed once written.",
    )
    op.create_table(
        "tool_specs",
        _text("digest"),
        _text("name"),
        sa.Column("spec", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        _time("created_at"),
        sa.PrimaryKeyConstraint("digest", name=op.f("tool_specs_pkey")),
        comment="Specifications of the tools of workers; tenant-less: a worker serves everybody.",
    )
    op.create_table(
        "worker_tools",
        sa.Column("incarnation", sa.Uuid(), nullable=False),
        sa.Column("digests", array, server_default=_NONE, nullable=False),
        sa.PrimaryKeyConstraint("incarnation", name=op.f("worker_tools_pkey")),
        sa.ForeignKeyConstraint(
            ["incarnation"],
            ["workers.incarnation"],
            name=op.f("worker_tools_incarnation_fkey"),
            ondelete="CASCADE",
        ),
        comment="Which tools a worker process has; tenant-less on purpose.",
    )
    op.create_table(
        "egress_rules",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("allow", array, server_default=_NONE, nullable=False),
        sa.Column("deny", array, server_default=_NONE, nullable=False),
        _time("changed_at"),
        _text("changed_by"),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("egress_rules_pkey")),
        comment="Which hosts a tenant's tools, webhooks and MCP servers may be at.",
    )


def downgrade() -> None:
    """Undo."""
    op.execute("DROP TRIGGER events_webhooks ON events")
    op.execute("DROP FUNCTION queue_webhooks()")
    for name in ("due", "hook", "created_at"):
        op.drop_index(f"webhook_deliveries_{name}_idx", table_name="webhook_deliveries")
    op.drop_constraint(
        "webhook_deliveries_tenant_id_webhook_id_fkey", "webhook_deliveries", type_="foreignkey"
    )
    for name in ("type", "run_id", "seq", "response_status", "error", "delivered_at"):
        op.drop_column("webhook_deliveries", name)
    op.drop_table_comment("webhooks")
    for name in ("disabled_why", "created_by", "secret_n", "rotated_at", "failures"):
        op.drop_column("webhooks", name)
    for table in ("egress_rules", "worker_tools", "tool_specs", "tool_versions", "tenant_tools"):
        op.drop_table(table)
