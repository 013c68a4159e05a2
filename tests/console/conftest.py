"""People at the console: httpx clients with a session, as a browser would send its requests."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest
from fastapi import FastAPI

from harness_common.store.db import Database
from tests.console.world import PARTS, World, make_world
from tests.fakes.tenant import Tenant
from tests.store.play import Play

SAME = {"Sec-Fetch-Site": "same-origin"}
LogIn = Callable[..., Awaitable[httpx.AsyncClient]]


def token_of(page: str) -> str:
    """Return the token that the forms of a page carry."""
    found = re.search(r'"X-CSRF-Token": "([0-9a-f]{64})"', page)
    assert found is not None, page[:500]
    return found[1]


async def send(client: httpx.AsyncClient, path: str, **fields: object) -> httpx.Response:
    """Send a form as a page of the console does, with its token."""
    page = await client.get("/console")
    return await client.post(path, data={"csrf": token_of(page.text), **fields})


@pytest.fixture
async def login_as(app: FastAPI, tenant: Tenant) -> AsyncIterator[LogIn]:
    """Log in with the key of a role (or any other key) and give the client."""
    async with AsyncExitStack() as stack:

        async def log_in(role: str = "admin", key: str | None = None) -> httpx.AsyncClient:
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app),
                    base_url="http://api",
                    headers=SAME,
                    timeout=30,
                )
            )
            answer = await client.post("/console/login", data={"key": key or tenant.keys[role]})
            assert answer.status_code == 303, answer.text
            return client

        yield log_in


@pytest.fixture
async def visitor(login_as: LogIn) -> httpx.AsyncClient:
    """Be logged in as an admin of `tenant`."""
    return await login_as("admin")


@pytest.fixture
def play(db: Database, tenant: Tenant) -> Play:
    """Play the worker of the first tenant's runs."""
    return Play(db, tenant.id)


@pytest.fixture
async def world(
    request: pytest.FixtureRequest,
    tenant: Tenant,
    play: Play,
    api: httpx.AsyncClient,
    db: Database,
) -> World:
    """Make one of everything for the first tenant, or of what `only(...)` names."""
    return await make_world(tenant, play, api, db, getattr(request, "param", PARTS))


def only(*parts: str) -> pytest.MarkDecorator:
    """Let a test have a `world` with some parts alone, which takes less time."""
    return pytest.mark.parametrize("world", [parts], indirect=True, ids=["world"])
