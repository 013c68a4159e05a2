"""A chain of models: who is asked when one cannot serve, what its breaker knows, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pytest

from harness_common.contracts.agent import AgentSpec
from harness_common.core.fallback import model_key
from harness_common.core.message import Message, Text
from harness_common.settings import Settings, ToolSettings
from harness_common.store import json_codec
from harness_worker.advance import answer
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import Runtime
from harness_worker.tools.breakers import Breakers
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import Answer, FakeOpenAI, refusal
from tests.store.play import Play, ran, say, sql
from tests.worker.runtime import FakeLive, make_runtime

MINE, NEXT = "openai/gpt-4.1", "anthropic/claude-sonnet-4-6"
OVERLOADED = refusal(529, "Overloaded", kind="overloaded_error")


@dataclass
class Chain:
    """An agent whose model is at one server and whose next model is at another."""

    play: Play
    runtime: Runtime
    first: FakeOpenAI
    second: FakeAnthropic
    client: httpx.AsyncClient

    async def spec(self, **fields: Any) -> None:
        """Change the agent."""
        spec = AgentSpec(model=MINE, max_turns=1000, **{"fallback_models": (NEXT,)} | fields)
        await sql(
            self.play.db,
            "UPDATE agents SET spec = cast(:s AS jsonb)",
            s=json_codec.dumps_text(spec.model_dump(mode="json")),
        )
        self.runtime._agents.clear()

    def configure(self, **settings: Any) -> None:
        """Build the models from settings."""
        self.runtime.models = ModelRegistry(Settings(**settings), self.client)

    async def step(self, run_id: UUID) -> str:
        """Run the step that is due, whatever it waits for."""
        await sql(
            self.play.db,
            "UPDATE runs SET status = 'running', not_before = NULL "
            "WHERE id = :r AND status = 'delayed'",
            r=run_id,
        )
        version = (await self.play.read(run_id)).version
        return await answer(self.runtime, self.play.tenant_id, run_id, version)

    async def run(self) -> UUID:
        """Start a run and make its first step."""
        run_id = await self.play.start()
        await self.step(run_id)
        return run_id

    async def told(self, run_id: UUID, kind: str) -> list[dict[str, Any]]:
        return [e["payload"] for e in await self.play.events(run_id) if e["type"] == kind]

    async def delay_over(self) -> None:
        """Let every throttle and breaker be over."""
        await sql(self.play.db, "DELETE FROM throttles")
        self.runtime.throttles._live.clear()


@pytest.fixture
async def chain(play, db) -> AsyncIterator[Chain]:
    async with FakeOpenAI() as first, FakeAnthropic() as second, shared_client() as client:
        runtime = await make_runtime(db)
        quick = ToolSettings(breaker_failures=3, breaker_open_s=60)
        runtime.breakers = Breakers(db, None, runtime.clock.now, quick)
        made = Chain(play, runtime, first, second, client)
        made.configure(openai_base_url=first.base_url, anthropic_base_url=second.base_url)
        await made.spec()
        yield made


async def test_the_agents_own_model_is_asked_while_it_serves(chain):
    run_id = await chain.run()
    assert (chain.first.calls, chain.second.calls) == (1, 0)
    assert not await chain.told(run_id, "model.degraded")
    assert (await chain.play.read(run_id)).state.output == "Hello there."
    assert await sql(chain.play.db, "TABLE tool_breakers") == []


async def test_an_overloaded_model_is_replaced_at_once_and_the_run_says_so(chain):
    chain.first.default = OVERLOADED
    run_id = await chain.run()
    assert (chain.first.calls, chain.second.calls) == (1, 1)
    (degraded,) = await chain.told(run_id, "model.degraded")
    assert (degraded["model"], degraded["served_by"]) == (MINE, NEXT)
    assert [(w["model"], w["code"]) for w in degraded["why"]] == [(MINE, "LIMITED")]
    (said,) = await chain.told(run_id, "model.answered")
    assert said["model"] == "claude-sonnet-4-6"
    assert (said["input_tokens"], said["output_tokens"]) == (20, 5)
    assert (said["cached_input_tokens"], said["cache_write_tokens"]) == (4, 6)
    price = (10 * 3 + 6 * 3.75 + 4 * 0.3 + 5 * 15) / 1e6
    assert said["cost_usd"] == pytest.approx(price)
    assert (await chain.play.read(run_id)).state.cost_usd == pytest.approx(price)
    assert chain.runtime.throttles.live, "everybody else is held back from the model too"


async def test_a_failing_model_is_tried_again_before_the_next(chain):
    chain.first.default = refusal(500, "oops")
    run_id = await chain.run()
    assert (chain.first.calls, chain.second.calls) == (1, 0)
    (failed,) = await chain.told(run_id, "step.failed")
    assert failed["error"]["code"] == "MODEL_UNAVAILABLE"
    assert await chain.step(run_id) == "succeeded"
    assert (chain.first.calls, chain.second.calls) == (2, 1)


async def test_without_retries_the_next_is_asked_at_once(chain):
    await chain.spec(retry={"max_attempts": 1})
    chain.first.default = Answer(cut_after=1)
    run_id = await chain.run()
    assert (chain.first.calls, chain.second.calls) == (1, 1)
    (degraded,) = await chain.told(run_id, "model.degraded")
    assert degraded["why"][0]["code"] == "STREAM_CUT"


@pytest.mark.parametrize(
    "cannot",
    [
        refusal(401, "Incorrect API key"),
        refusal(404, "no such model", code="model_not_found"),
        refusal(429, "pay", code="insufficient_quota"),
    ],
    ids=["key", "model", "quota"],
)
async def test_a_model_that_cannot_serve_is_replaced(chain, cannot):
    chain.first.default = cannot
    run_id = await chain.run()
    assert (await chain.play.read(run_id)).state.status == "succeeded"
    assert chain.second.calls == 1


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (refusal(400, "bad", kind="invalid_request_error"), "MODEL_BAD_REQUEST"),
        (refusal(400, "no", code="content_policy_violation"), "MODEL_REFUSED"),
    ],
)
async def test_a_refused_request_goes_nowhere_else(chain, refused, code):
    chain.first.default = refused
    run_id = await chain.run()
    assert chain.second.calls == 0
    state = (await chain.play.read(run_id)).state
    assert (state.status, state.error["code"]) == ("failed", code)
    assert await sql(chain.play.db, "TABLE tool_breakers") == [], "an answer is no fault"


async def test_a_prompt_that_is_too_long_is_made_shorter_not_sent_elsewhere(chain):
    chain.first.default = refusal(400, "long", code="context_length_exceeded")
    run_id = await chain.run()
    assert chain.second.calls == 0
    state = (await chain.play.read(run_id)).state
    assert (state.status, state.next_kind) == ("running", "compact")


async def test_a_short_rate_limit_is_waited_for_and_a_long_one_is_not(chain):
    """One 429 holds everybody back; who has another model asks it when the wait is long."""
    chain.first.answers.append(refusal(429, "slow", headers={"Retry-After": "5"}))
    run_id = await chain.run()
    assert (await chain.play.read(run_id)).state.status == "delayed"
    assert chain.second.calls == 0
    await chain.delay_over()
    chain.first.answers.append(refusal(429, "slow", headers={"Retry-After": "60"}))
    run_id = await chain.run()
    assert (await chain.play.read(run_id)).state.status == "succeeded"
    assert (chain.first.calls, chain.second.calls) == (2, 1)
    other = await chain.run()
    assert (chain.first.calls, chain.second.calls) == (2, 2), "nobody asks before Retry-After"
    (degraded,) = await chain.told(other, "model.degraded")
    assert degraded["why"][0]["code"] == "THROTTLED"
    (row,) = await sql(chain.play.db, "SELECT next_at <= until AS free FROM throttles")
    assert row["free"], "who asked somebody else took no slot"


async def test_a_model_that_is_not_configured_is_passed_over(chain):
    chain.configure(anthropic_base_url=chain.second.base_url)
    run_id = await chain.run()
    (degraded,) = await chain.told(run_id, "model.degraded")
    assert degraded["why"][0]["code"] == "MODEL_NOT_CONFIGURED"
    assert "HARNESS_OPENAI_API_KEY" in degraded["why"][0]["message"]
    assert await sql(chain.play.db, "TABLE tool_breakers") == []


async def test_the_breaker_of_a_model_opens_lets_one_try_and_closes(chain):
    key = (chain.play.tenant_id, model_key(MINE))
    chain.first.default = OVERLOADED
    for calls in (1, 2):
        await chain.run()
        await chain.delay_over()
        assert chain.first.calls == calls
    run_id = await chain.run()
    await chain.delay_over()
    (opened,) = await chain.told(run_id, "model.breaker_opened")
    assert (opened["model"], opened["failures"]) == (MINE, 3)
    run_id = await chain.run()
    assert chain.first.calls == 3, "an open breaker asks nobody"
    (degraded,) = await chain.told(run_id, "model.degraded")
    assert degraded["why"][0]["code"] == "BREAKER_OPEN"
    chain.first.default = Answer()
    await sql(
        chain.play.db, "UPDATE tool_breakers SET until = clock_timestamp() - interval '10 seconds'"
    )
    await chain.runtime.breakers.look()
    run_id = await chain.run()
    assert chain.first.calls == 4
    (closed,) = await chain.told(run_id, "model.breaker_closed")
    assert closed == {"model": MINE}
    assert key not in chain.runtime.breakers.open
    assert chain.second.calls == 4


async def test_another_process_and_no_other_tenant_knows_of_the_breaker(chain):
    chain.first.default = refusal(401, "no")
    await asyncio.gather(*(chain.run() for _ in range(3)))
    other = Breakers(chain.play.db, None, chain.runtime.clock.now, ToolSettings())
    await other.look()
    assert list(other.open) == [(chain.play.tenant_id, model_key(MINE))]


async def test_when_nobody_else_serves_an_open_breaker_keeps_nobody_away(chain):
    chain.first.default = refusal(401, "no")
    for _ in range(3):
        await chain.run()
    chain.first.default = Answer()
    chain.second.default = refusal(401, "no")
    run_id = await chain.run()
    assert (await chain.play.read(run_id)).state.status == "succeeded"
    assert chain.first.calls == 4


async def test_when_all_fail_the_most_hopeful_failure_counts(chain):
    """A limit that ends is better than the end, and trying again soon is better than a limit."""
    chain.first.default = refusal(529, "Overloaded", headers={"Retry-After": "40"})
    chain.second.default = refusal(401, "no")
    run_id = await chain.run()
    (failed,) = await chain.told(run_id, "step.failed")
    assert failed["error"]["category"] == "limited"
    assert failed["error"]["retry_after_s"] == pytest.approx(40, abs=1)
    chain.second.default = refusal(500, "oops")
    run_id = await chain.run()
    (failed,) = await chain.told(run_id, "step.failed")
    assert failed["error"]["code"] == "MODEL_UNAVAILABLE"


async def test_a_prompt_too_long_for_the_stand_in_alone_waits_for_the_agents_own_model(chain):
    """Only when its attempts are used up the conversation is cut down to the other's window."""
    await chain.spec(retry={"max_attempts": 2})
    chain.first.default = refusal(529, "Overloaded", headers={"Retry-After": "40"})
    chain.second.default = refusal(400, "prompt is too long: 300000 tokens > 200000 maximum")
    run_id = await chain.run()
    assert chain.second.calls == 1
    assert not await chain.told(run_id, "context.full")
    (failed,) = await chain.told(run_id, "step.failed")
    assert failed["error"]["category"] == "limited"
    await chain.delay_over()
    chain.first.default = refusal(500, "oops")
    await chain.step(run_id)
    assert not await chain.told(run_id, "context.full")
    await chain.step(run_id)
    assert (chain.first.calls, chain.second.calls) == (3, 2)
    assert len(await chain.told(run_id, "context.full")) == 1
    # One that can never serve is not waited for.
    chain.first.default = refusal(401, "no")
    run_id = await chain.run()
    assert len(await chain.told(run_id, "context.full")) == 1


async def test_what_the_first_was_asked_is_put_right_for_the_next(chain):
    """Ids are unique, the other's material stays behind, options of the other provider too."""
    await chain.spec(model_options={"top_p": 0.5, "seed": 7}, temperature=0.3)
    run_id = await chain.play.start()
    extra = {"provider": "openai", "items": ["reasoning"]}
    for one in (
        say(tools=("look", "look"), extra=extra), ran("1", "2"), say(tools=("look",)), ran("3"),
    ):  # fmt: skip
        await chain.play.step(run_id, one)
    chain.first.default = OVERLOADED
    assert await chain.step(run_id) == "succeeded"
    (asked,) = chain.second.requests
    body = asked["body"]
    assert "temperature" not in body
    assert not {"seed", "top_p"} & body.keys()
    uses = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert uses == ["call_0", "call_1", "call_3"]
    assert "reasoning" not in str(body)


async def test_a_chain_is_reserved_at_the_price_of_its_dearest(chain):
    from harness_worker.budgets import _estimate
    from harness_worker.steps.context import StepContext

    run = await chain.play.read(await chain.play.start("x" * 40_000))
    none: Any = None

    async def reserved(*fallback: str) -> float:
        spec = AgentSpec(model="openai/gpt-5-mini", fallback_models=fallback)
        said = (Message("user", (Text("x" * 40_000),)),)
        ctx = StepContext(run, spec, (), said, (), none, chain.runtime, none)
        return (await _estimate(ctx))[1]

    assert await reserved("anthropic/claude-opus-5") > 5 * await reserved()
    assert await reserved("scripted/x") == await reserved()


async def test_the_text_of_a_model_that_broke_off_is_told_apart_from_that_of_the_next(chain):
    shown: list[tuple[str, int, int]] = []

    class Live(FakeLive):
        def delta(self, run_id: UUID, step: int, text: str, at: int = 0, again: int = 0) -> None:
            shown.append((text, at, again))

    live: Any = Live()
    chain.runtime.live = live
    chain.first.default = Answer(pieces=("Hel", "lo", "!"), cut_after=2, delay_s=0.1)
    run_id = await chain.run()
    assert {again for _, _, again in shown} == {0}
    shown.clear()
    await chain.step(run_id)
    (said,) = await chain.told(run_id, "model.answered")
    assert said["restarts"] == 1
    assert shown[0] == ("Hel", 0, 0)
    (first, *_) = [one for one in shown if one[2] == 1]
    assert first[1] == 0
    output = (await chain.play.read(run_id)).state.output
    assert "".join(text for text, _, again in shown if again == 1) == output
