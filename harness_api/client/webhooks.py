"""Webhooks: whom to tell of what, and what became of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from harness_api.client.http import Call
from harness_api.client.paths import id_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Delivery, Webhook
from harness_common.core.ids import decode


def _path(webhook_id: str, rest: str = "") -> str:
    return id_path("/v1/webhooks/{}", "webhook", webhook_id) + rest


class Webhooks(Resource[M]):
    """`client.webhooks`."""

    @operation
    async def add(self, url: str, types: Sequence[str]) -> Webhook:
        """Add a webhook; its `secret` is in this answer only."""
        body = {"url": url, "types": list(types)}
        return await self._http.fetch(Call("POST", "/v1/webhooks", body=body), Webhook)

    @operation
    async def get(self, webhook_id: str) -> Webhook:
        """Read a webhook."""
        return await self._http.fetch(Call("GET", _path(webhook_id)), Webhook)

    @flow
    async def list(self) -> AsyncGenerator[Webhook, None]:
        """Yield webhooks, newest first."""
        async for found in self._http.pages("/v1/webhooks", Webhook, None):
            yield found

    @operation
    async def remove(self, webhook_id: str) -> None:
        """Take a webhook away with all that waits for it."""
        await self._http.send(Call("DELETE", _path(webhook_id)))

    @operation
    async def enable(self, webhook_id: str) -> Webhook:
        """Deliver again. Safe to repeat."""
        call = Call("POST", _path(webhook_id, "/enable"), repeatable=True)
        return await self._http.fetch(call, Webhook)

    @operation
    async def disable(self, webhook_id: str) -> Webhook:
        """Hold all deliveries. Safe to repeat."""
        call = Call("POST", _path(webhook_id, "/disable"), repeatable=True)
        return await self._http.fetch(call, Webhook)

    @operation
    async def rotate(self, webhook_id: str) -> Webhook:
        """Go over to a new `secret`; for a day the old one signs as well."""
        return await self._http.fetch(Call("POST", _path(webhook_id, "/rotate")), Webhook)

    @operation
    async def test(self, webhook_id: str) -> Delivery:
        """Send a message of the type `webhook.test`."""
        return await self._http.fetch(Call("POST", _path(webhook_id, "/test")), Delivery)

    @flow
    async def deliveries(
        self, webhook_id: str, limit: int | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Yield what was told and what became of it, newest first."""
        path = _path(webhook_id, "/deliveries")
        async for found in self._http.pages(path, Delivery, limit):
            yield found

    @operation
    async def redeliver(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send a message once more, under the same id."""
        decode("delivery", delivery_id)
        path = _path(webhook_id, f"/deliveries/{delivery_id}/redeliver")
        return await self._http.fetch(Call("POST", path), Delivery)
