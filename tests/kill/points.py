"""Where a worker may be killed, and the parts of it that do so: its ledger, its breakers, its
tools. Nothing of the product knows of this.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from harness_common.contracts.tool import Tool, ToolContext
from harness_common.store.connection import Connection, Row, run_sql
from harness_worker.tools import keeper, ledger
from harness_worker.tools.breakers import Breakers, Leave, Shut
from harness_worker.tools.keeper import KEEP_AFTER_S
from tests.worker.tool_steps import a_tool

COMPANION_S = 4 * KEEP_AFTER_S
"""How long the other call of a step takes, so that what the first gave is kept meanwhile."""


class Point(StrEnum):
    """Where the process dies, in the order in which a call comes by."""

    BEFORE_INTENT = "before_intent"
    AFTER_INTENT = "after_intent"
    """For a read or an idempotent call, which has none: when the tool begins."""
    DURING_EFFECT = "during_effect"
    """In the tool; before or after its effect, by the toss of a coin."""
    AFTER_EFFECT = "after_effect"
    """The tool has returned, and what it gave is about to be recorded."""
    AFTER_PERSIST = "after_persist"
    """It is recorded, and the step is not committed."""


@dataclass(frozen=True, slots=True)
class Death:
    """When a worker is to die; `coin` chooses the side of the effect."""

    point: Point | None = None
    coin: bool = False

    def at(self, point: Point) -> None:
        """Die if this is the place."""
        if point is self.point:
            os.kill(os.getpid(), signal.SIGKILL)


def make_mortal(death: Death) -> None:
    """Let this process die around the statements of the ledger, each of which is a commit."""

    async def mortal(
        conn: Connection, name: str, params: Mapping[str, Any], timeout_s: float
    ) -> list[Row]:
        if name in {"call_result", "call_keep"}:
            death.at(Point.AFTER_EFFECT)
        rows = await run_sql(conn, name, params, timeout_s)
        if name == "call_intent":
            death.at(Point.AFTER_INTENT)
        if name in {"call_result", "call_keep"}:
            death.at(Point.AFTER_PERSIST)
        return rows

    for module in (ledger, keeper):
        assert vars(module)["run_sql"] is run_sql, "somebody else runs the ledger's statements"
        vars(module)["run_sql"] = mortal


class MortalBreakers(Breakers):
    """Dies when all is decided and nothing is started."""

    death = Death()

    async def leave(self, tenant_id: UUID, tool: str, timeout_s: float) -> Leave | Shut:
        if tool != "companion":
            self.death.at(Point.BEFORE_INTENT)
        return await super().leave(tenant_id, tool, timeout_s)


def make_tools(effects: str, death: Death) -> list[Tool]:
    """Make one tool of each effect class that appends a line to `effects`, and a slow companion."""

    async def target(ctx: ToolContext, **args: Any) -> str:
        if args["x"] != "write":
            death.at(Point.AFTER_INTENT)
        if not death.coin:
            death.at(Point.DURING_EFFECT)
        fd = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{args['x']} {ctx.idempotency_key} {ctx.attempt}\n".encode())
        os.close(fd)
        death.at(Point.DURING_EFFECT)
        return "done"

    async def companion(ctx: ToolContext, **args: Any) -> str:
        del ctx, args
        if death.point in {Point.AFTER_EFFECT, Point.AFTER_PERSIST}:
            await asyncio.sleep(COMPANION_S)
        return "slept"

    classes = ("read", "idempotent", "write")
    return [a_tool(e, e, target) for e in classes] + [a_tool("companion", "read", companion)]
