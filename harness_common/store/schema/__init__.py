"""The tables, as SQLAlchemy Core metadata. Alembic owns the database; a test compares the two.

Every table has `tenant_id`, and every unique key includes it. `events` and `checkpoints` are
range-partitioned on `run_id` (UUIDv7 is time-ordered), see `store.partitions`.
"""

from __future__ import annotations

from harness_common.store.schema.breakers import tool_breakers
from harness_common.store.schema.catalog import (
    egress_rules,
    tenant_tools,
    tool_specs,
    tool_versions,
    worker_tools,
)
from harness_common.store.schema.columns import metadata
from harness_common.store.schema.console import console_views
from harness_common.store.schema.context import context_parts
from harness_common.store.schema.foreign import foreign_checkpoints, foreign_writes
from harness_common.store.schema.mcp import mcp_servers, mcp_tools
from harness_common.store.schema.memories import memories
from harness_common.store.schema.operations import (
    leader,
    schedule_firings,
    schedules,
    webhook_deliveries,
    webhooks,
    workers,
)
from harness_common.store.schema.policies import policies
from harness_common.store.schema.repairs import repairs
from harness_common.store.schema.retention import blob_garbage, erasures, retention
from harness_common.store.schema.runs import (
    artifacts,
    checkpoints,
    events,
    inputs,
    messages,
    runs,
    sessions,
)
from harness_common.store.schema.secrets import secrets, tenant_keys
from harness_common.store.schema.skills import skills
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
from harness_common.store.schema.tools import approvals, tool_calls

__all__ = [
    "agents",
    "api_keys",
    "approvals",
    "artifacts",
    "audit",
    "blob_garbage",
    "checkpoints",
    "console_views",
    "context_parts",
    "egress_rules",
    "erasures",
    "events",
    "foreign_checkpoints",
    "foreign_writes",
    "idempotency_keys",
    "inputs",
    "leader",
    "mcp_servers",
    "mcp_tools",
    "memories",
    "messages",
    "metadata",
    "platform",
    "policies",
    "repairs",
    "retention",
    "runs",
    "schedule_firings",
    "schedules",
    "secrets",
    "sessions",
    "skills",
    "tenant_days",
    "tenant_keys",
    "tenant_slots",
    "tenant_tools",
    "tenants",
    "throttles",
    "tool_breakers",
    "tool_calls",
    "tool_specs",
    "tool_versions",
    "usage",
    "webhook_deliveries",
    "webhooks",
    "worker_tools",
    "workers",
]
