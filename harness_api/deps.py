"""What routes are given: the services of this process, and the small readers of requests that
several routes share.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from redis.asyncio import Redis

from harness_api.auth import Keyring
from harness_api.console.session import Sessions
from harness_api.flower import Upstream
from harness_api.live import Hub
from harness_api.metrics import Metrics
from harness_common.broker.publish import Bell
from harness_common.contracts.blob import Blobs
from harness_common.contracts.embeddings import Embedder
from harness_common.coord.channel import Channel
from harness_common.settings import Settings
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring as DataKeyring


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a route may use. Built by `app`'s lifespan."""

    config: Settings
    db: Database
    redis: Redis
    channel: Channel
    bell: Bell
    blobs: Blobs
    hub: Hub
    keyring: Keyring
    sessions: Sessions
    metrics: Metrics
    data_keys: DataKeyring
    flower: Upstream
    embedder: Embedder | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is told to stop, so that open streams end."""


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Use = Annotated[Services, Depends(_services)]
"""The services of this process."""
