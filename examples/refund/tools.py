"""The two tools of the support agent: looking up an order, and giving money back.

`harness dev --tools examples.refund.tools` starts workers with them. What is paid out stands in
the file that `REFUND_FILE` names: a line for each refund, with the key of the call that made it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from harness_worker.sdk import Permanent, ToolContext, tool

ORDERS: Final[dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("orders.json").read_text(encoding="utf-8")
)
Order = Annotated[str, Field(pattern=r"^A-\d{4}$", description="The order's number: A-1042.")]


def refund_file() -> Path:
    """Return where refunds are written down: the bank of this example."""
    return Path(os.environ.get("REFUND_FILE", ".harness/refunds.txt"))


def _letter(arguments: dict[str, Any]) -> str:
    """Show a person what would be done, in words."""
    order = ORDERS.get(arguments["order"], {})
    return (
        f"Pay {arguments['amount_usd']:.2f} USD back to {order.get('customer', '?')} for order "
        f"{arguments['order']} ({order.get('item', '?')}, {order.get('paid_usd', 0):.2f} USD paid)."
        f"\nReason: {arguments['reason']}"
    )


@tool(effect="read", reads_private=True)
async def order_find(order: Order) -> dict[str, Any]:
    """Look up an order: customer, item, price, delivery. Use it before you speak of an order."""
    if order not in ORDERS:
        raise Permanent(f"there is no order {order}")
    return {"order": order, **ORDERS[order]}


@tool(effect="write", risk="high", meta={"preview": _letter})
def refund(
    ctx: ToolContext,
    order: Order,
    amount_usd: Annotated[float, Field(gt=0, le=500)],
    reason: Annotated[str, Field(min_length=3, max_length=200)],
) -> str:
    """Pay money back for an order. A person has to approve it, and may change the amount."""
    if order not in ORDERS:
        raise Permanent(f"there is no order {order}")
    if amount_usd > ORDERS[order]["paid_usd"]:
        raise Permanent(f"only {ORDERS[order]['paid_usd']:.2f} USD were paid for {order}")
    path = refund_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{order} {amount_usd:.2f} {ctx.idempotency_key} {reason}\n")
    return f"{amount_usd:.2f} USD were paid back for {order}"
