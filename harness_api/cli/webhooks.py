"""`harness webhooks`: tell other systems what happens to runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table, say

if TYPE_CHECKING:
    from harness_api.client import Delivery, Webhook

app = group("Tell other systems what happens to runs, signed and tried again until they take it.")

HookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="A webhook's id: hook_…")]


@app.command(
    epilog=examples(
        "harness webhooks add https://ops.example.com/hook --type run.failed --type budget.exceeded"
    )
    + "\n\nThe secret is printed on standard output, this once."
)
def add(
    url: Annotated[str, typer.Argument(metavar="URL")],
    types: Annotated[
        list[str],
        typer.Option(
            "--type",
            help="run.succeeded, run.failed, run.cancelled, approval.requested or "
            "budget.exceeded; repeatable.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Add a webhook."""
    with connect() as client:
        _tell_secret(client.webhooks.add(url, types), as_json)


@app.command()
def rotate(webhook: HookId, as_json: Json = False) -> None:
    """Go over to a new secret; for a day messages are signed with the old one too."""
    with connect() as client:
        _tell_secret(client.webhooks.rotate(webhook), as_json)


@app.command("list")
def list_webhooks(as_json: Json = False) -> None:
    """List webhooks, newest first."""
    with connect() as client:
        found = list(client.webhooks.list())
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "url", "types", "status", "made"),
        [(w.id, w.url, w.types, w.status, w.created_at) for w in found],
        "No webhooks. Add one with `harness webhooks add URL --type run.failed`.",
    )


@app.command()
def show(webhook: HookId, as_json: Json = False) -> None:
    """Show a webhook."""
    with connect() as client:
        _tell(client.webhooks.get(webhook), as_json)


@app.command()
def remove(webhook: HookId, as_json: Json = False) -> None:
    """Take a webhook away with all that waits for it."""
    with connect() as client:
        client.webhooks.remove(webhook)
    if as_json:
        print_json({"webhook": webhook, "removed": True})
    else:
        print(f"{webhook} is removed")


@app.command()
def enable(webhook: HookId, as_json: Json = False) -> None:
    """Deliver again, what was held meanwhile included."""
    with connect() as client:
        _tell(client.webhooks.enable(webhook), as_json)


@app.command()
def disable(webhook: HookId, as_json: Json = False) -> None:
    """Hold all deliveries until it is enabled."""
    with connect() as client:
        _tell(client.webhooks.disable(webhook), as_json)


@app.command("test")
def send_test(webhook: HookId, as_json: Json = False) -> None:
    """Send a message of the type webhook.test; `deliveries` says what became of it."""
    with connect() as client:
        _tell_delivery(client.webhooks.test(webhook), as_json)


@app.command()
def deliveries(webhook: HookId, limit: Limit = 20, as_json: Json = False) -> None:
    """List what was told and what became of it, newest first."""
    with connect() as client:
        found = list(client.webhooks.deliveries(webhook, limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "type", "run", "status", "attempts", "answer", "why", "next", "made"),
        [
            (
                d.id, d.type, d.run_id, d.status, d.attempts, d.response_status, d.error,
                d.next_at, d.created_at,
            )
            for d in found
        ],
        "Nothing was told yet.",
    )  # fmt: skip


@app.command()
def redeliver(
    webhook: HookId,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Its id: msg_…")],
    as_json: Json = False,
) -> None:
    """Send a message once more, under the same id."""
    with connect() as client:
        _tell_delivery(client.webhooks.redeliver(webhook, delivery), as_json)


def _tell_secret(webhook: Webhook, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    print(webhook.secret)
    say(f"{webhook.id} tells {webhook.url}; its secret is above and is not shown again")


def _tell(webhook: Webhook, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    print_pairs(
        {
            "webhook": webhook.id,
            "url": webhook.url,
            "types": webhook.types,
            "status": webhook.status,
            "why": webhook.disabled_why,
            "failures": webhook.failures or None,
            "made": webhook.created_at,
            "rotated": webhook.rotated_at,
        }
    )


def _tell_delivery(delivery: Delivery, as_json: bool) -> None:
    if as_json:
        print_json(delivery)
    else:
        print(f"{delivery.id} is {delivery.status}")
