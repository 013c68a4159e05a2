"""Daily budgets: a step reserves before it spends, and its commit settles the account."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.context_rules import ContextRules
from harness_common.contracts.foreign import OPENAI_AGENTS
from harness_common.contracts.guardrails import Guardrails
from harness_common.core.errors import Limited
from harness_common.core.inputs import OwnerLost
from harness_common.core.run import Status
from harness_common.core.step import COMPACT
from harness_common.store.claim import unclaim
from harness_worker.advance import answer
from harness_worker.budgets import PLATFORM, reserve
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry
from tests.store.play import sql
from tests.worker.runtime import claim_tools_step, make_runtime
from tests.worker.test_handoff import put
from tests.worker.tool_steps import a_tool


class NoPrices:
    """Every model is free."""

    def cost_usd(self, name: str, usage: object) -> float:
        del name, usage
        return 0.0


@pytest.fixture
async def runtime(db):
    made = await make_runtime(db)
    models: Any = made.models
    models.prices = NoPrices()
    return made


async def limit(play, **limits):
    for name, value in limits.items():
        await sql(play.db, f"UPDATE tenant_slots SET {name} = :v WHERE tenant_id = :t",
                  v=value, t=play.tenant_id)  # fmt: skip


async def account(play, who: UUID | None = None):
    rows = await sql(
        play.db,
        "SELECT tokens, reserved_tokens, cost_usd, reserved_usd, day FROM tenant_days "
        "WHERE tenant_id = :t",
        t=who or play.tenant_id,
    )
    return rows[0] if rows else None


async def test_a_step_reserves_and_settles(play, runtime):
    await limit(play, tokens_per_day=5_000)
    run_id = await play.start()
    await answer(runtime, play.tenant_id, run_id, 1)
    row = await account(play)
    assert row["day"] == datetime.now(UTC).date()
    assert (row["tokens"], row["reserved_tokens"]) == (0, 0), "the fake model uses no tokens"
    platform = await account(play, PLATFORM)
    assert platform["reserved_tokens"] == 0


async def test_without_a_daily_limit_no_account_is_kept(play, runtime):
    run_id = await play.start()
    await answer(runtime, play.tenant_id, run_id, 1)
    assert await account(play) is None


async def test_a_used_up_day_delays_the_run_with_its_reason(play, runtime):
    await limit(play, tokens_per_day=5_000)
    await sql(
        play.db,
        "INSERT INTO tenant_days (tenant_id, day, tokens) "
        "VALUES (:t, (clock_timestamp() AT TIME ZONE 'UTC')::date, 4900)",
        t=play.tenant_id,
    )
    run_id = await play.start()
    await answer(runtime, play.tenant_id, run_id, 1)
    state = (await play.read(run_id)).state
    assert state.status is Status.DELAYED
    assert (state.waiting["for"], state.waiting["scope"]) == ("rate_limited", "tokens_per_day")
    row = await account(play)
    assert (row["tokens"], row["reserved_tokens"]) == (4900, 0)


async def test_a_step_that_no_day_has_room_for_fails(play, runtime):
    await limit(play, tokens_per_day=10)
    run_id = await play.start()
    await answer(runtime, play.tenant_id, run_id, 1)
    run = await play.read(run_id)
    assert (run.state.status, run.state.error["code"]) == (Status.FAILED, "OVER_DAILY_LIMIT")


async def test_steps_at_once_never_reserve_more_than_the_day_has(play, runtime):
    """INV13: each step may take about 1,030 tokens; four fit."""
    await limit(play, tokens_per_day=4_500)
    runs = [await play.start(str(n)) for n in range(8)]
    contexts = [await claim_tools_step(runtime, play, run_id) for run_id in runs]
    got = await asyncio.gather(*(reserve(ctx) for ctx in contexts), return_exceptions=True)
    assert sum(not isinstance(one, BaseException) for one in got) == 4
    row = await account(play)
    assert 4_000 < row["reserved_tokens"] <= 4_500


async def test_the_platform_has_a_budget_of_its_own(play, runtime):
    await sql(
        play.db,
        "INSERT INTO platform (name, tokens_per_day) VALUES ('global', 1500) "
        "ON CONFLICT (name) DO UPDATE SET tokens_per_day = 1500",
    )
    try:
        first, second = await play.start("1"), await play.start("2")
        await reserve(await claim_tools_step(runtime, play, first))
        await answer(runtime, play.tenant_id, second, 1)
        state = (await play.read(second)).state
        assert state.status is Status.DELAYED
        assert "the platform's tokens_per_day" in state.waiting["message"]
    finally:
        await sql(play.db, "UPDATE platform SET tokens_per_day = NULL")


async def test_the_judges_of_a_step_are_reserved_for(play, runtime):
    """Each takes the text that it judges, and says up to 500 tokens."""
    await limit(play, tokens_per_day=50_000)
    await put(play, "critic", max_output_tokens=500)
    judge = {"kind": "judge", "agent": "critic"}
    rails = Guardrails.model_validate({"input": [judge], "output": [judge]})
    ctx = await claim_tools_step(runtime, play, await play.start("x" * 3_000))
    spec = AgentSpec(guardrails=rails, max_output_tokens=1_000)
    await reserve(replace(ctx, spec=spec))
    # The input twice and its answer; the answer, the judge of it, and the judge of the input.
    least = 2 * 1_000 + 1_000 + 1_000 + 2 * 500
    assert least < (await account(play))["reserved_tokens"] < least + 1_500


async def test_a_turn_of_openai_agents_waits_for_a_day_with_room(play, runtime):
    await limit(play, tokens_per_day=5_000)
    ctx = await claim_tools_step(runtime, play, await play.start("x" * 3_000))
    run = replace(ctx.run, state=replace(ctx.run.state, next_kind=OPENAI_AGENTS))
    ctx = replace(ctx, run=run, spec=AgentSpec(max_output_tokens=1_000))
    await reserve(ctx)
    assert 2_000 < (await account(play))["reserved_tokens"] < 2_200
    await sql(play.db, "UPDATE tenant_days SET tokens = 4900 WHERE tenant_id = :t",
              t=play.tenant_id)  # fmt: skip
    with pytest.raises(Limited, match="tokens_per_day"):
        await reserve(ctx)


async def test_a_compaction_is_reserved_for(play, runtime):
    await limit(play, tokens_per_day=50_000)
    ctx = await claim_tools_step(runtime, play, await play.start("x" * 9_000))
    run = replace(ctx.run, state=replace(ctx.run.state, next_kind=COMPACT))
    await reserve(replace(ctx, run=run, spec=AgentSpec(model="fake/x")))
    assert 3_000 + 1_000 < (await account(play))["reserved_tokens"] < 3_000 + 1_000 + 1_000


async def test_a_compaction_that_asks_no_model_reserves_nothing(play, runtime):
    await limit(play, tokens_per_day=50_000)
    ctx = await claim_tools_step(runtime, play, await play.start("x" * 9_000))
    run = replace(ctx.run, state=replace(ctx.run.state, next_kind=COMPACT))
    rules = ContextRules(strategy="extract")
    await reserve(replace(ctx, run=run, spec=AgentSpec(model="fake/x", context=rules)))
    assert (await account(play))["reserved_tokens"] == 0


async def test_what_a_dead_owner_reserved_is_given_back(play, runtime):
    await limit(play, tokens_per_day=5_000)
    run_id = await play.start()
    await reserve(await claim_tools_step(runtime, play, run_id))
    assert (await account(play))["reserved_tokens"] > 1_000
    await play.apply(await play.read(run_id), OwnerLost("w", "killed"))
    assert (await account(play))["reserved_tokens"] == 0


async def test_what_was_reserved_for_a_step_that_is_given_back_is_free_again(play, runtime):
    """A judge of a newer version is found out in the middle of a step, again and again."""
    await limit(play, tokens_per_day=5_000)
    run_id = await play.start()
    for _ in range(2):
        run = await reserve(await claim_tools_step(runtime, play, run_id))
        assert 1_000 < (await account(play))["reserved_tokens"] < 2_000
        assert run.claim_id is not None
        await unclaim(play.db, play.tenant_id, run_id, run.claim_id)
        for who in (play.tenant_id, PLATFORM):
            assert (await account(play, who))["reserved_tokens"] == 0
    assert (await play.read(run_id)).reserved_tokens == 0
    assert (await play.read(run_id)).claim_id is None


async def test_all_of_a_prompt_is_reserved_for(play, runtime):
    """Tools may be longer than what is said; a Chinese character is a token or more."""
    await limit(play, tokens_per_day=50_000)

    async def reserved(said: str, **spec: Any) -> int:
        before = await account(play)
        ctx = await claim_tools_step(runtime, play, await play.start(said))
        await reserve(replace(ctx, spec=AgentSpec(model="fake/x", max_output_tokens=100, **spec)))
        after: int = (await account(play))["reserved_tokens"]
        return after - (before["reserved_tokens"] if before else 0)

    least = await reserved("hi")
    assert least < 200
    assert await reserved("\u5929" * 3_000) > 3_000

    async def look(ctx: Any) -> None:
        del ctx

    tool = a_tool("look", "read", look, description="x" * 6_000)
    runtime.catalog = Catalog(ToolRegistry([tool]))
    assert await reserved("hi", tools=("look",)) > least + 1_500
    assert await reserved("hi", memory={"recall_tokens": 900}) >= least + 900
