"""How often models' answers had to be repaired."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.repairs import RepairCount, RepairStats
from harness_common.contracts.agent import Name
from harness_common.store.repairs import repairs_of_month

router = new_router("/v1/repairs", "repairs")

Month = Annotated[
    str | None,
    Query(
        pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$",
        description="A month in UTC, like 2026-11; by default the current one.",
    ),
]


@router.get("/stats", operation_id="repairStats", response_model=RepairStats)
async def repair_stats(
    services: Use,
    caller: Annotated[Caller, requires("runs:read")],
    month: Month = None,
    agent: Name | None = None,
) -> RepairStats:
    """Count the repairs of a month by agent, model and kind."""
    month = month or datetime.now(UTC).strftime("%Y-%m")
    rows = await repairs_of_month(services.db, caller.tenant_id, month, agent)
    kinds: Counter[str] = Counter()
    for row in rows:
        kinds[row["kind"]] += row["repairs"]
    return RepairStats(
        month=month,
        repairs=kinds.total(),
        kinds=dict(kinds.most_common()),
        data=[RepairCount(**row) for row in rows],
    )
