"""The client that the official conformance suite starts: our pool and connections against its
server.

    python conformance_client.py SERVER_URL

What a scenario needs that is a person's or an installation's part is given here: how an OAuth login
ends, and that forms are accepted as they are offered.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import httpx
import mcp_types as types
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)

from harness_common.contracts.tool import EffectClass
from harness_common.settings import McpSettings
from harness_common.store.mcp_tools import Server
from harness_worker.mcp.ask import accept_defaults
from harness_worker.mcp.connection import Call
from harness_worker.mcp.pool import Outside, Pool
from harness_worker.tools.registry import check_spec

CALLBACK = "http://localhost:3000/callback"
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


class Storage:
    """Tokens in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if "client_id" in CONTEXT:
            self.client = OAuthClientInformationFull(
                client_id=CONTEXT["client_id"],
                client_secret=CONTEXT.get("client_secret"),
                redirect_uris=[CALLBACK],
                token_endpoint_auth_method="client_secret_basic",
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def login(url: str) -> Any:
    """Log in as a browser would: follow the address, take what comes back."""
    back: dict[str, str | None] = {}

    async def redirect(address: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(address, follow_redirects=False)
        query = parse_qs(urlsplit(response.headers["location"]).query)
        back.update({key: values[0] for key, values in query.items()})

    async def callback() -> Any:
        return AuthorizationCodeResult(
            code=back["code"] or "", state=back.get("state"), iss=back.get("iss")
        )

    metadata = OAuthClientMetadata(
        client_name="harness",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    return OAuthClientProvider(
        url,
        metadata,
        Storage(),
        redirect,
        callback,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )


def credentials(url: str) -> Any:
    return ClientCredentialsOAuthProvider(
        url, Storage(), client_id=CONTEXT["client_id"], client_secret=CONTEXT["client_secret"]
    )


async def nothing(*_: Any) -> None:
    """Record nothing."""


async def quiet(progress: float, total: float | None, message: str | None) -> None:
    """Report nothing."""


async def plain_client(tenant_id: UUID) -> httpx.AsyncClient:
    """Return a client that goes anywhere."""
    del tenant_id
    return httpx.AsyncClient(trust_env=False)


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    how = credentials if scenario == "auth/client-credentials-basic" else login
    auth = how(url) if scenario.startswith("auth/") else None
    outside = Outside(
        settings=McpSettings(),
        homes=Path("/nonexistent"),
        client=plain_client,
        check=check_spec,
        record=nothing,
        auth=lambda server: auth,
    )
    pool = Pool(outside)
    server = Server(uuid4(), uuid4(), "conformance", {"url": url}, {}, None, 1)
    connection = await pool.get(server)
    for name in connection.hashes:
        call = Call(EffectClass.READ, accept_defaults)
        arguments = {"a": 5, "b": 3} if name == "add_numbers" else {}
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        print(name, await connection.call_tool(call, params, quiet))  # noqa: T201
    await pool.aclose()


asyncio.run(main(sys.argv[-1]))
