"""Webhooks: whom to tell of what, and what became of it."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import DeliveryId, WebhookId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.webhooks import (
    DeliveryView,
    WebhookCreate,
    WebhookSecret,
    WebhookView,
)
from harness_common.core.ids import encode
from harness_common.core.webhook import secret_of
from harness_common.store import webhooks as store
from harness_common.store.connection import Row

router = new_router("/v1/webhooks", "webhooks")

CanRead = Annotated[Caller, requires("webhooks:read")]
CanWrite = Annotated[Caller, requires("webhooks:write")]


def webhook_view(row: Row) -> WebhookView:
    """Show a webhook."""
    kept = ("url", "types", "disabled_at", "disabled_why", "failures", "created_at", "created_by")
    return WebhookView(
        id=encode("webhook", row["id"]),
        status="disabled" if row["disabled_at"] else "enabled",
        rotated_at=row["rotated_at"],
        **{name: row[name] for name in kept},
    )


def delivery_view(row: Row) -> DeliveryView:
    """Show a delivery."""
    kept = ("type", "status", "response_status", "error", "created_at", "delivered_at")
    return DeliveryView(
        id=encode("delivery", row["id"]),
        webhook_id=encode("webhook", row["webhook_id"]),
        run_id=encode("run", row["run_id"]) if row["run_id"] else None,
        attempts=row["attempt"],
        next_at=row["next_at"] if row["status"] == "pending" else None,
        **{name: row[name] for name in kept},
    )


def _with_secret(services: Services, row: Row) -> WebhookSecret:
    secret = secret_of(services.keyring.pepper, row["id"], row["secret_n"])
    return WebhookSecret(**webhook_view(row).model_dump(), secret=secret)


@router.post("", status_code=201, operation_id="addWebhook", response_model=WebhookSecret)
async def post_webhook(body: WebhookCreate, services: Use, caller: CanWrite) -> WebhookSecret:
    """Add a webhook; the answer has the secret by which its messages are signed."""
    row = await store.add_webhook(
        services.db, caller.tenant_id, body.url, list(body.types), caller.actor
    )
    return _with_secret(services, row)


@router.get("", operation_id="listWebhooks", response_model=Page[WebhookView])
async def get_webhooks(services: Use, caller: CanRead) -> Page[WebhookView]:
    """List webhooks, newest first."""
    rows = await store.list_webhooks(services.db, caller.tenant_id)
    return Page(data=[webhook_view(row) for row in rows])


@router.get("/{webhook_id}", operation_id="getWebhook", response_model=WebhookView)
async def get_webhook(webhook_id: WebhookId, services: Use, caller: CanRead) -> WebhookView:
    """Read a webhook."""
    return webhook_view(await store.read_webhook(services.db, caller.tenant_id, webhook_id))


@router.delete("/{webhook_id}", status_code=204, operation_id="removeWebhook")
async def delete_webhook(webhook_id: WebhookId, services: Use, caller: CanWrite) -> None:
    """Take a webhook away with all that waits for it."""
    await store.remove_webhook(services.db, caller.tenant_id, webhook_id, caller.actor)


@router.post("/{webhook_id}/enable", operation_id="enableWebhook", response_model=WebhookView)
async def post_enable(webhook_id: WebhookId, services: Use, caller: CanWrite) -> WebhookView:
    """Deliver again, what was held meanwhile included. Safe to repeat."""
    row = await store.set_webhook(
        services.db, caller.tenant_id, webhook_id, caller.actor, disabled=False
    )
    await services.channel.nudge()
    return webhook_view(row)


@router.post("/{webhook_id}/disable", operation_id="disableWebhook", response_model=WebhookView)
async def post_disable(webhook_id: WebhookId, services: Use, caller: CanWrite) -> WebhookView:
    """Hold all deliveries until it is enabled. Safe to repeat."""
    row = await store.set_webhook(
        services.db, caller.tenant_id, webhook_id, caller.actor, disabled=True
    )
    return webhook_view(row)


@router.post("/{webhook_id}/rotate", operation_id="rotateWebhook", response_model=WebhookSecret)
async def post_rotate(webhook_id: WebhookId, services: Use, caller: CanWrite) -> WebhookSecret:
    """Go over to a new secret; for a day messages are signed with the old one too."""
    row = await store.rotate_secret(services.db, caller.tenant_id, webhook_id, caller.actor)
    return _with_secret(services, row)


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    operation_id="testWebhook",
    response_model=DeliveryView,
)
async def post_test(webhook_id: WebhookId, services: Use, caller: CanWrite) -> DeliveryView:
    """Send a message of the type `webhook.test`."""
    row = await store.send_test(services.db, caller.tenant_id, webhook_id)
    await services.channel.nudge()
    return delivery_view(row)


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="listDeliveries",
    response_model=Page[DeliveryView],
)
async def get_deliveries(
    webhook_id: WebhookId,
    services: Use,
    caller: CanRead,
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[DeliveryView]:
    """List what was told and what became of it, newest first; kept for 30 days."""
    rows = await store.list_deliveries(
        services.db, caller.tenant_id, webhook_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, delivery_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    operation_id="redeliver",
    response_model=DeliveryView,
)
async def post_redeliver(
    webhook_id: WebhookId, delivery_id: DeliveryId, services: Use, caller: CanWrite
) -> DeliveryView:
    """Send a message once more, under the same id."""
    row = await store.redeliver(
        services.db, caller.tenant_id, webhook_id, delivery_id, caller.actor
    )
    await services.channel.nudge()
    return delivery_view(row)
