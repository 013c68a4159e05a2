"""Secrets and the keys that encrypt what is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from harness_api.client.http import Call
from harness_api.client.paths import name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import DataKeys, Secret


class Secrets(Resource[M]):
    """`client.secrets`."""

    @operation
    async def set(self, name: str, value: str) -> Secret:
        """Set a secret or replace its value; nothing gives the value back."""
        path = name_path("/v1/secrets/{}", name)
        return await self._http.fetch(Call("PUT", path, body={"value": value}), Secret)

    @flow
    async def list(self, limit: int | None = None) -> AsyncGenerator[Secret, None]:
        """Yield secrets by name, without their values."""
        async for secret in self._http.pages("/v1/secrets", Secret, limit):
            yield secret

    @operation
    async def delete(self, name: str) -> None:
        """Delete a secret for good."""
        await self._http.send(Call("DELETE", name_path("/v1/secrets/{}", name)))

    @operation
    async def keys(self) -> DataKeys:
        """Count the data keys of all tenants by what wraps them; for an operator's key."""
        return await self._http.fetch(Call("GET", "/v1/platform/keys"), DataKeys)

    @operation
    async def rewrap(self, limit: int = 100) -> DataKeys:
        """Wrap up to `limit` data keys by the current key-encryption key; repeat until `left` is 0.
        For an operator's key.
        """
        call = Call("POST", "/v1/platform/keys/rewrap", body={"limit": limit}, repeatable=True)
        return await self._http.fetch(call, DataKeys)
