"""Tools whose effects are counted in a file, outside the database; some need approval."""

from __future__ import annotations

import os
from pathlib import Path

from harness_worker.sdk import ToolContext, tool


def _letter(arguments: dict[str, object]) -> str:
    return f"Dear {arguments['to']}, here are {arguments['amount']}."


@tool(effect="write", risk="high", meta={"preview": _letter})
async def pay(ctx: ToolContext, to: str, amount: int) -> str:
    """Pay somebody. Use it when something is owed."""
    _note(f"pay {to} {amount} {ctx.call_id.split('.', 1)[1]}")
    return f"paid {amount} to {to}"


@tool(effect="write")
async def note(ctx: ToolContext, text: str) -> str:
    """Write something down. Use it for what should be known later."""
    _note(f"note {text} {ctx.call_id.split('.', 1)[1]}")
    return "noted"


def _note(line: str) -> None:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{line}\n")
