"""Daily budgets: a step reserves what it may cost before it starts; its commit settles the account.

Only tenants that have a daily limit (or a platform that has one) pay for this with a statement per
step. What a dead owner reserved is given back by whoever clears its claim (`commit.sql`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from harness_common.contracts.foreign import OPENAI_AGENTS
from harness_common.contracts.model import Usage
from harness_common.core.context_prompt import tools_tokens
from harness_common.core.errors import Limited, LostOwnership, Permanent
from harness_common.core.step import COMPACT, MODEL, NODE
from harness_common.core.tokens import bytes_to_tokens, json_bytes, messages_tokens, text_tokens
from harness_common.store.connection import Row, run_sql
from harness_common.store.rows import StoredRun
from harness_worker.steps.context import StepContext
from harness_worker.steps.most import (
    Most,
    most_of,
    most_of_judges,
    most_of_nodes,
    most_of_summaries,
)
from harness_worker.steps.registry import registry_of

_LOOK_AGAIN_S: Final = 60.0
"""A limit may be raised at any time: a run that waits for tomorrow looks again this often."""
PLATFORM: Final = UUID(int=0)


async def reserve(ctx: StepContext) -> StoredRun:
    """Reserve the most that the coming step may cost; returns the run with its reservation.

    Raises `Limited` when the day's budget is used up, `Permanent` when the step alone exceeds it.
    """
    tokens, cost_usd = await _estimate(ctx)
    db, run = ctx.runtime.db, ctx.run
    params = {
        "tenant_id": run.tenant_id,
        "run_id": run.id,
        "fence": run.fence,
        "claim_id": run.claim_id,
        "tokens": tokens,
        "cost_usd": cost_usd,
    }
    async with db.transaction() as conn:
        noted = await run_sql(conn, "budget_note", params, db.timeout_s)
        if not noted:
            raise LostOwnership("another claim owns the run", run_id=str(run.id))
        day: date = noted[0]["day"]
        for who in (PLATFORM, run.tenant_id):  # in the order in which `commit.sql` locks them
            (row,) = await run_sql(
                conn, "budget_reserve", params | {"who": who, "day": day}, db.timeout_s
            )
            if not row["reserved"]:
                raise _refusal(row, tokens, cost_usd, who)
    return replace(run, reserved_tokens=tokens, reserved_usd=cost_usd, reserved_day=day)


async def _estimate(ctx: StepContext) -> tuple[int, float]:
    """Return the most tokens and money that the coming step may take; tools are counted when they
    have cost.
    """
    kind, others = ctx.run.state.next_kind, list[Most]()
    tokens, cost_usd = 0, 0.0
    if ctx.run.overrides.get("recorded"):
        return tokens, cost_usd  # a dry run asks nobody
    if kind == NODE:
        return most_of_nodes(ctx)
    if kind == MODEL:
        tokens, cost_usd = await _most_of_answer(ctx)
        others = await most_of_judges(ctx)
    elif kind == OPENAI_AGENTS:
        # At the least one answer: what its turn asks for besides is known only when it is paid.
        tokens, cost_usd = await _most_of_answer(ctx)
    elif kind == COMPACT:
        others = most_of_summaries(ctx)
    prices = ctx.runtime.models.prices
    tokens += sum(usage.input_tokens + usage.output_tokens for _, usage in others)
    return tokens, cost_usd + sum(prices.cost_usd(name, usage) or 0.0 for name, usage in others)


async def _most_of_answer(ctx: StepContext) -> tuple[int, float]:
    """Return what the answer of the agent's own model, or of the dearest that may stand in for it,
    may take: all of its prompt, tools and what is remembered too.
    """
    spec, registry = ctx.spec, await registry_of(ctx)
    tools = [registry.get(name).spec for name in spec.tools if name in registry]
    estimated = text_tokens(spec.system) + tools_tokens(tools)
    estimated += messages_tokens(ctx.history + ctx.messages)
    estimated += spec.memory.recall_tokens if spec.memory else 0
    estimated += bytes_to_tokens(json_bytes(spec.output_schema)) if spec.output_schema else 0
    usage = Usage(most_of(estimated), spec.max_output_tokens)
    prices = ctx.runtime.models.prices
    cost_usd = max(prices.cost_usd(name, usage) or 0.0 for name in spec.models)
    return usage.input_tokens + usage.output_tokens, cost_usd


def _refusal(row: Row, tokens: int, cost_usd: float, who: UUID) -> Limited | Permanent:
    owner = "the platform" if who == PLATFORM else "the tenant"
    # Who lost a race is refused by what the row is now, and `over_tokens` is of what it was before.
    over_tokens = row["over_tokens"] or row["cost_usd_per_day"] is None
    name = "tokens_per_day" if over_tokens else "cost_usd_per_day"
    limit, wanted = row[name], tokens if over_tokens else cost_usd
    if wanted > limit:
        return Permanent(
            f"the step may take {wanted:g}, more than {owner}'s {name} of {limit:g} in a whole day",
            code="OVER_DAILY_LIMIT",
            limit=limit,
        )
    now: datetime = row["now"]
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    left_s = (midnight + timedelta(days=1) - now).total_seconds()
    return Limited(
        f"{owner}'s {name} of {limit:g} is used up for today ({row['used']:g} used or reserved)",
        code="DAILY_LIMIT",
        retry_after_s=min(left_s, _LOOK_AGAIN_S),
        scope=name,
    )
