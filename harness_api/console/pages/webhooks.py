"""Webhooks: whom to tell of what, what became of it, and sending it once more."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import webhooks
from harness_api.routes.ids import DeliveryId, WebhookId
from harness_api.schemas.webhooks import EventType, WebhookCreate, WebhookSecret
from harness_common.core.ids import encode

router = new_pages("/console/webhooks")

CanRead = Annotated[Visit, requires_page("webhooks:read")]
CanWrite = Annotated[Visit, requires_page("webhooks:write")]
LIMIT = 50


def _path(webhook_id: Any) -> str:  # noqa: ANN401 - what `WebhookId` reads is a UUID
    return f"/console/webhooks/{encode('webhook', webhook_id)}"


@router.get("")
async def webhooks_page(services: Use, visit: CanRead) -> Response:
    """List webhooks."""
    found = await webhooks.get_webhooks(services, visit.caller)
    return visit.page("webhooks.html", webhooks=found.data, types=get_args(EventType))


@router.post("")
async def add(services: Use, visit: CanWrite) -> Response:
    """Add a webhook and show its secret, this once."""
    types: Any = visit.all_of("types")
    body = WebhookCreate(url=visit.form.get("url", "").strip(), types=types)
    return _with_secret(visit, await webhooks.post_webhook(body, services, visit.caller))


def _with_secret(visit: Visit, hook: WebhookSecret) -> Response:
    title = f"The signing secret of {hook.url}"
    if visit.htmx:
        return visit.part("_secret.html", title=title, secret=hook.secret)
    return visit.page("secret.html", title=title, secret=hook.secret, back="webhooks")


@router.get("/{webhook_id}")
async def webhook_page(
    webhook_id: WebhookId, services: Use, visit: CanRead, cursor: IdCursor = None
) -> Response:
    """Show a webhook and what was told."""
    one = await webhooks.get_webhook(webhook_id, services, visit.caller)
    found = await webhooks.get_deliveries(
        webhook_id, services, visit.caller, limit=LIMIT, cursor=cursor
    )
    return visit.page(
        "webhook.html",
        one=one,
        deliveries=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
    )


@router.post("/{webhook_id}/enable")
async def enable(webhook_id: WebhookId, services: Use, visit: CanWrite) -> Response:
    """Deliver again."""
    await webhooks.post_enable(webhook_id, services, visit.caller)
    return visit.go(_path(webhook_id), "Enabled: what was held is sent now.")


@router.post("/{webhook_id}/disable")
async def disable(webhook_id: WebhookId, services: Use, visit: CanWrite) -> Response:
    """Hold all deliveries."""
    await webhooks.post_disable(webhook_id, services, visit.caller)
    return visit.go(_path(webhook_id), "Disabled: deliveries are held.")


@router.post("/{webhook_id}/rotate")
async def rotate(webhook_id: WebhookId, services: Use, visit: CanWrite) -> Response:
    """Go over to a new secret and show it, this once."""
    return _with_secret(visit, await webhooks.post_rotate(webhook_id, services, visit.caller))


@router.post("/{webhook_id}/test")
async def send_test(webhook_id: WebhookId, services: Use, visit: CanWrite) -> Response:
    """Send a message of the type `webhook.test`."""
    await webhooks.post_test(webhook_id, services, visit.caller)
    return visit.go(_path(webhook_id), "A test message is on its way.")


@router.post("/{webhook_id}/remove")
async def remove(webhook_id: WebhookId, services: Use, visit: CanWrite) -> Response:
    """Take a webhook away."""
    await webhooks.delete_webhook(webhook_id, services, visit.caller)
    return visit.go("/console/webhooks", "Removed, with all that waited for it.")


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver")
async def redeliver(
    webhook_id: WebhookId, delivery_id: DeliveryId, services: Use, visit: CanWrite
) -> Response:
    """Send a message once more, under the same id."""
    await webhooks.post_redeliver(webhook_id, delivery_id, services, visit.caller)
    return visit.go(_path(webhook_id), "It is sent once more, under the same id.")
