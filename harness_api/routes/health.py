"""Whether the process lives, whether it is ready, and its metrics. No key is asked for: nothing of
a tenant is shown.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import Response

from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.base import Output
from harness_common.coord.redis import RedisFault
from harness_common.core.errors import Transient
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.schema_check import SchemaUnusable, check_schema

router = new_router("", "health")


class Alive(Output):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Output):
    """Whether requests can be served; without Redis more slowly, but correctly."""

    status: Literal["ready", "degraded"]
    postgres: Literal["ok"] = "ok"
    redis: Literal["ok", "down"]


@router.get("/healthz", operation_id="health", response_model=Alive)
async def get_health() -> Alive:
    """Tell that the process lives."""
    return Alive()


@router.get("/readyz", operation_id="readiness", response_model=Readiness)
async def get_readiness(services: Use) -> Readiness:
    """Tell whether Postgres answers within a second and its schema can be used; 503 when not. Redis
    is shown and not required.
    """
    try:
        async with asyncio.timeout(1.0), services.db.connection() as conn:
            await check_schema(conn, 1.0)
    except SchemaUnusable:
        raise
    except (TimeoutError, Transient) as error:
        raise DatabaseUnavailable("Postgres did not answer within 1 s") from error
    try:
        async with asyncio.timeout(0.5):
            await services.redis.ping()
    except (TimeoutError, *RedisFault):
        return Readiness(status="degraded", redis="down")
    return Readiness(status="ready", redis="ok")


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def get_metrics(services: Use) -> Response:
    """Metrics of this process in the Prometheus text format."""
    services.metrics.doorbells_lost.set(services.bell.lost)
    return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
