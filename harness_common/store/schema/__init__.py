"""The tables, as SQLAlchemy Core metadata. Alembic owns the database; a test compares the two.

Every table has `tenant_id`, and every unique key includes it. `events` and `checkpoints` are
range-partitioned on `run_id` (UUIDv7 is time-ordered), see `store.partitions`.
"""

from __future__ import annotations

from harness_common.store.schema.columns import metadata
from harness_common.store.schema.mcp import mcp_servers, mcp_tools
from harness_common.store.schema.operations import (
    leader,
    schedule_firings,
    schedules,
    webhook_deliveries,
    webhooks,
    workers,
)
from harness_common.store.schema.runs import (
    artifacts,
    checkpoints,
    events,
    inputs,
    messages,
    runs,
    sessions,
)
from harness_common.store.schema.tenants import (
    agents,
    api_keys,
    audit,
    idempotency_keys,
    platform,
    tenant_days,
    tenant_slots,
    tenants,
    throttles,
    usage,
)
from harness_common.store.schema.tools import approvals, memories, tool_calls

__all__ = [
    "agents",
    "api_keys",
    "approvals",
    "artifacts",
    "audit",
    "checkpoints",
    "events",
    "idempotency_keys",
    "inputs",
    "leader",
    "mcp_servers",
    "mcp_tools",
    "memories",
    "messages",
    "metadata",
    "platform",
    "runs",
    "schedule_firings",
    "schedules",
    "sessions",
    "tenant_days",
    "tenant_slots",
    "tenants",
    "throttles",
    "tool_calls",
    "usage",
    "webhook_deliveries",
    "webhooks",
    "workers",
]
