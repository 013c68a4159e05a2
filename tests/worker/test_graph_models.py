"""Model nodes of graphs ask as agents do: along a chain, by a contract, and everything is paid."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from harness_api.responses.ids import Ref
from harness_api.responses.walk import Answered, Walk
from harness_common.commands import cancel_run
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import (
    Capabilities,
    ChatRequest,
    ChatResult,
    Finish,
    OnDelta,
    Usage,
)
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Message, Text
from harness_common.core.run import Status
from harness_worker.advance import release_all
from harness_worker.steps.most import most_of_nodes
from tests.store.play import sql
from tests.worker.graph_runs import go_on, graph_worker, step
from tests.worker.runtime import FakeModels, claim_tools_step, make_shared, say_nothing
from tests.worker.test_budgets import NoPrices
from tests.worker.test_graph_runs import admit

FORM = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "note": {"type": "string"}},
    "required": ["label"],
    "additionalProperties": False,
}
CLASSIFY = f"""
nodes:
  sort: {{kind: model, prompt: "sort ${{/input}}", output_schema: {json.dumps(FORM)}}}
output: "${{/nodes/sort/output/label?}}"
"""
ONE = 'nodes: {ask: {kind: model, prompt: "p", MORE}}'


class Cut(str):
    """An answer that was cut off at the most tokens it may have."""


class Models(FakeModels):
    """A registry whose models each have a list of answers; an exception is raised. An event is set
    when it is asked for, and never answered.
    """

    def __init__(self, **answers: list[str | HarnessError | asyncio.Event]) -> None:
        super().__init__(say_nothing)
        self.answers = answers
        self.asked: list[tuple[str, ChatRequest]] = []
        self.prices = NoPrices()
        self.usage = Usage(7, 3)

    def get(self, name: str) -> Any:
        return _One(self, name)


class _One(FakeModels):
    def __init__(self, models: Models, name: str) -> None:
        super().__init__(say_nothing)
        self.models, self.name = models, name
        self.scope = f"fake:{name}"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        del on_delta
        self.models.asked.append((self.name, request))
        said = self.models.answers[self.name.partition("/")[2]].pop(0)
        if isinstance(said, HarnessError):
            raise said
        if isinstance(said, asyncio.Event):
            said.set()
            await asyncio.Event().wait()
        message = Message("assistant", (Text(str(said)),))
        finish: Finish = "length" if isinstance(said, Cut) else "stop"
        return ChatResult(message, self.models.usage, finish, self.name)


async def worker(db, text, models, **spec):
    runtime = await graph_worker(db, text, spec=spec)
    runtime.models = models
    return runtime


async def test_an_answer_that_is_nearly_in_form_is_repaired_and_told(play, db):
    models = Models(x=["```json\n{'label': 'bug',}\n```"])
    runtime = await worker(db, CLASSIFY, models)
    run_id = await play.start("it crashes")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert (await play.read(run_id)).state.output == "bug"
    (told,) = [e for e in await play.events(run_id) if e["type"] == "answer.repaired"]
    assert told["payload"]["of"] == "output"
    assert models.asked[0][1].answer_schema == FORM


async def test_an_answer_out_of_form_is_asked_for_again_and_both_are_paid(play, db):
    models = Models(x=["I think it is a bug.", '{"label": "bug"}'])
    runtime = await worker(db, CLASSIFY, models)
    run_id = await play.start("it crashes")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    run = await play.read(run_id)
    assert run.state.output == "bug"
    assert (run.state.input_tokens, run.state.output_tokens) == (14, 6)
    again = models.asked[1][1].messages
    assert [m.role for m in again] == ["user", "assistant", "user"]
    assert "I think it is a bug." in again[2].text()
    await play.check_whole(run_id)


async def test_a_model_that_never_finds_the_form_fails_its_node(play, db):
    models = Models(x=["no", "no", "no", "never asked"])
    runtime = await worker(db, CLASSIFY, models)
    run_id = await play.start("it crashes")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    run = await play.read(run_id)
    assert run.state.stop_reason == "node_failed"
    assert run.state.error["code"] == "CONTRACT_VIOLATED"
    assert len(models.asked) == 3  # once, and again as often as the contract lets it
    assert run.state.input_tokens == 21


@pytest.mark.parametrize("error", [Limited("later", retry_after_s=60), Transient("cut")])
async def test_what_was_paid_before_the_step_was_put_off_is_on_record(play, db, error):
    models = Models(x=["no", error])
    runtime = await worker(db, CLASSIFY, models)
    run_id = await play.start("it crashes")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    run = await play.read(run_id)
    assert (run.state.input_tokens, run.state.output_tokens) == (7, 3)


async def test_the_budget_holds_between_two_asks(play, db):
    models = Models(x=["no", "never asked"])
    runtime = await worker(db, CLASSIFY, models, max_tokens_total=10)
    run_id = await play.start("it crashes")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    assert (await play.read(run_id)).state.stop_reason == "token_budget_exceeded"
    assert len(models.asked) == 1


@pytest.mark.parametrize(
    ("more", "spec", "asked"),
    [
        ("parse: text", {"fallback_models": ["fake/y"]}, ["fake/x", "fake/y"]),
        ("fallback_models: [fake/z]", {"fallback_models": ["fake/y"]}, ["fake/x", "fake/z"]),
        ("model: fake/w, fallback_models: [fake/z]", {}, ["fake/w", "fake/z"]),
    ],
)
async def test_the_next_of_the_chain_answers_for_one_that_cannot(play, db, more, spec, asked):
    gone = Permanent("no such key", code="MODEL_AUTH")
    models = Models(x=[gone], w=[gone], y=["from y"], z=["from z"])
    runtime = await worker(db, ONE.replace("MORE", more), models, **spec)
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert [name for name, _ in models.asked] == asked
    told = [e["payload"] for e in await play.events(run_id) if e["type"] == "model.degraded"]
    assert [t["served_by"] for t in told] == asked[1:]


async def test_a_node_with_a_model_of_its_own_has_none_of_the_agents_stand_ins(play, db):
    models = Models(w=[Permanent("no such key", code="MODEL_AUTH")], y=["never asked"])
    text = ONE.replace("MORE", "model: fake/w")
    runtime = await worker(db, text, models, fallback_models=["fake/y"])
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    assert [name for name, _ in models.asked] == ["fake/w"]


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        ('{label: "${/input}"}', Status.SUCCEEDED, '{"label":"it"}'),
        ('{lable: "${/input}"}', Status.FAILED, None),
    ],
)
async def test_the_output_of_a_graph_has_the_form_that_was_asked_for(
    play, db, output, status, said
):
    text = ONE.replace("MORE", "parse: text") + f"\noutput: {output}"
    runtime = await worker(db, text, Models(x=["yes"]), output_schema=FORM)
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is status
    run = await play.read(run_id)
    assert run.state.output == said
    if status is Status.FAILED:
        assert run.state.error["code"] == "OUTPUT_NOT_IN_FORM"
        assert "label" in run.state.error["message"]


async def test_an_answer_that_was_cut_off_is_no_value_and_says_so(play, db):
    runtime = await worker(db, ONE.replace("MORE", "max_output_tokens: 3"), Models(x=[Cut("It i")]))
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.FAILED
    state = (await play.read(run_id)).state
    assert state.error["code"] == "ANSWER_CUT"
    assert "max_output_tokens (3)" in state.error["message"]
    assert "It i" in state.error["message"]
    assert (state.turn, state.input_tokens, state.output_tokens) == (1, 7, 3)
    (told,) = [e["payload"] for e in await play.events(run_id) if e["type"] == "model.answered"]
    assert (told["finish"], told["model"]) == ("length", "fake/x")
    await play.check_whole(run_id)


async def test_a_graph_may_go_on_without_an_answer_that_was_cut_off(play, db):
    text = ONE.replace("MORE", "on_error: go_on") + '\noutput: "${/nodes/ask/error/code}"'
    runtime = await worker(db, text, Models(x=[Cut("It i")]))
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert (await play.read(run_id)).state.output == "ANSWER_CUT"


async def test_an_object_that_is_whole_was_not_cut_off(play, db):
    runtime = await worker(db, CLASSIFY, Models(x=[Cut('{"label": "bug"}')]))
    run_id = await play.start("it crashes")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert (await play.read(run_id)).state.output == "bug"


async def told(play, run_id, name):
    return [e["payload"] for e in await play.events(run_id) if e["type"] == name]


async def test_a_repair_is_told_also_when_its_step_is_put_off(play, db):
    shared = await make_shared(db)
    models = Models(x=["{'label': 'bug',}", Limited("later", retry_after_s=0.01), '{"label": "x"}'])
    text = PAIR.replace("MORE", f"output_schema: {json.dumps(FORM)}")
    runtime = await worker(db, text, models)
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    assert len(await told(play, run_id, "answer.repaired")) == 1
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert len(models.asked) == 3
    assert len(await told(play, run_id, "answer.repaired")) == 1, "once"
    await play.check_whole(run_id)


async def test_who_answered_instead_is_told_also_when_the_step_is_put_off(play, db):
    shared = await make_shared(db)
    gone = Permanent("no such key", code="MODEL_AUTH")
    models = Models(x=[gone, gone, gone], y=["one", Limited("later", retry_after_s=0.01), "two"])
    text = PAIR.replace("MORE", "parse: text")
    runtime = await worker(db, text, models, fallback_models=["fake/y"])
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    degraded = await told(play, run_id, "model.degraded")
    assert [d["served_by"] for d in degraded] == ["fake/y", "fake/y"]


IN_TURN = 'nodes: {each: {kind: map, over: [1, 2], parallel: 1, do: {prompt: "${/item}"}}}'


@pytest.mark.parametrize(("text", "first"), [(CLASSIFY, "no"), (IN_TURN, "one")])
async def test_what_was_paid_before_a_cancel_is_on_record(play, db, text, first):
    """Of the question that is left, and of the answers that the ledger has."""
    asked = asyncio.Event()
    runtime = await worker(db, text, Models(x=[first, asked]))
    run_id = await play.start("it crashes")
    await step(runtime, play, run_id)
    working = asyncio.ensure_future(step(runtime, play, run_id))
    await asked.wait()
    await cancel_run(db, play.tenant_id, run_id, by="ann")
    runtime.held[run_id].cancel()
    assert await working is Status.CANCELLED
    state = (await play.read(run_id)).state
    assert (state.input_tokens, state.output_tokens) == (7, 3)
    await play.check_whole(run_id)


async def test_an_answer_of_an_earlier_attempt_is_paid_by_a_run_that_is_cancelled(play, db):
    shared = await make_shared(db)
    asked = asyncio.Event()
    models = Models(x=["one", Limited("later", retry_after_s=0.01), asked])
    runtime = await worker(db, IN_TURN, models)
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    working = asyncio.ensure_future(step(runtime, play, run_id))
    await asked.wait()
    await cancel_run(db, play.tenant_id, run_id, by="ann")
    runtime.held[run_id].cancel()
    assert await working is Status.CANCELLED
    assert (await play.read(run_id)).state.input_tokens == 7


async def test_a_worker_that_stops_keeps_the_answers_that_came(play, db):
    """However short ago: it is neither asked for nor paid again."""
    asked = asyncio.Event()
    models = Models(x=["one", asked, "two"])
    runtime = await worker(db, IN_TURN, models)
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    working = asyncio.ensure_future(step(runtime, play, run_id))
    await asked.wait()
    release_all(runtime)
    assert await working is Status.RUNNING
    assert [c["status"] for c in await play.calls(run_id)] == ["succeeded", "proposed"]
    assert (await play.read(run_id)).state.input_tokens == 0, "whoever ends the step counts it"
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert len(models.asked) == 3
    assert (await play.read(run_id)).state.input_tokens == 14


async def test_what_was_paid_for_a_question_that_is_given_back_is_on_record(play, db):
    asked = asyncio.Event()
    models = Models(x=["no", asked, '{"label": "bug"}'])
    runtime = await worker(db, CLASSIFY, models)
    run_id = await play.start("it crashes")
    await step(runtime, play, run_id)
    working = asyncio.ensure_future(step(runtime, play, run_id))
    await asked.wait()
    release_all(runtime)
    assert await working is Status.RUNNING
    assert (await play.read(run_id)).state.input_tokens == 7
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert (await play.read(run_id)).state.input_tokens == 14


class Dear:
    """The price of a call, by model."""

    def cost_usd(self, name: str, usage: object) -> float:
        del usage
        return {"fake/x": 1.0, "fake/y": 5.0}[name]


async def test_a_node_reserves_the_price_of_the_dearest_of_its_chain(play, db):
    models = Models()
    text = ONE.replace("MORE", "parse: text")
    runtime = await worker(db, text, models, fallback_models=["fake/y"])
    prices: Any = Dear()
    models.prices = prices
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    ctx = await claim_tools_step(runtime, play, run_id)
    ctx = replace(ctx, spec=await runtime.agent(ctx.run))
    assert most_of_nodes(ctx)[1] == 5.0


def graph(node, **spec):
    body = {"kind": "model", "prompt": "p"} | node
    return AgentSpec.model_validate({"kind": "graph", "graph": {"nodes": {"a": body}}} | spec)


def test_what_only_a_loop_can_follow_is_refused():
    with pytest.raises(ValidationError, match=r"no use for stop_when, guardrails"):
        graph(
            {},
            guardrails={"output": [{"kind": "max_chars", "limit": 3}]},
            stop_when=[{"tool": "x"}],
        )
    again = graph({}).model_dump(mode="json", by_alias=True)
    assert AgentSpec.model_validate(again).graph is not None  # as it is stored


def test_a_schema_that_is_none_is_refused_where_it_stands():
    with pytest.raises(ValidationError, match="output_schema"):
        graph({"output_schema": {"type": "objekt"}})


async def test_a_schema_may_hold_what_looks_like_a_template(play, db):
    form = {"type": "object", "properties": {"v": {"type": "string", "pattern": "^${/x}|y$"}}}
    text = CLASSIFY.replace(json.dumps(FORM), json.dumps(form)).replace("label?", "v?")
    models = Models(x=['{"v": "y"}'])
    runtime = await worker(db, text, models)
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert models.asked[0][1].answer_schema == form


PAIR = "nodes: {a: {kind: model, prompt: A, MORE}, b: {kind: model, prompt: B, MORE}}"


async def test_the_budget_counts_what_an_earlier_attempt_at_the_step_has_paid(play, db):
    shared = await make_shared(db)
    models = Models(x=["one", Limited("later", retry_after_s=0.01), "two", "never asked"])
    text = 'nodes: {each: {kind: map, over: [1, 2, 3], parallel: 1, do: {prompt: "${/item}"}}}'
    runtime = await worker(db, text, models, max_tokens_total=15)
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.DELAYED
    await admit(shared, play, run_id)
    assert await go_on(runtime, play, run_id) is Status.FAILED
    assert (await play.read(run_id)).state.stop_reason == "token_budget_exceeded"
    assert len(models.asked) == 3


async def test_a_model_of_another_provider_is_not_given_the_agents_options(play, db):
    models = Models(w=["yes"])
    text = ONE.replace("MORE", "model: other/w, options: {own: 1}")
    runtime = await worker(db, text, models, model_options={"effort": "high"})
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert models.asked[0][1].options == {"own": 1, "attempt": 1}


async def test_the_repairs_of_all_answers_of_a_step_are_counted(play, db, monkeypatch):
    """Also when the count that is written first takes longest."""
    nearly = '```json\n{"label": "bug"}\n```'
    models = Models(x=[nearly, nearly])
    text = PAIR.replace("MORE", f"output_schema: {json.dumps(FORM)}")
    runtime = await worker(db, text, models)
    written, fetch = [], runtime.db.fetch

    async def slow_at_first(name, params):
        if name == "repairs_keep":
            written.append(params["kinds"])
            await asyncio.sleep(0.3 if len(written) == 1 else 0)
        return await fetch(name, params)

    monkeypatch.setattr(runtime.db, "fetch", slow_at_first)
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    assert len(written) == 2
    (row,) = await sql(db, "SELECT kinds, model FROM repairs WHERE run_id = :r", r=run_id)
    assert (row["kinds"], row["model"]) == ({"fence": 2}, "fake/x")


async def test_a_response_finds_the_answer_of_every_step(play, db):
    """Two answers of one step have one message: the next step keeps its own."""
    text = """
nodes:
  a: {kind: model, prompt: A}
  b: {kind: model, prompt: B}
  c: {kind: model, prompt: C}
edges: ["a -> c", "b -> c"]
output: "said ${/nodes/c/output}"
"""
    runtime = await worker(db, text, Models(x=["one", "two", "three"]))
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    facts = await Walk(db, play.tenant_id, Ref(run_id)).news()
    said = [fact.message.text() for fact in facts if isinstance(fact, Answered)]
    assert said == ["", "", "said three"]


async def test_what_the_ledger_has_is_paid_by_a_run_whose_step_fails_for_good(play, db):
    """The limit of the second answer ends after the run's own time."""
    models = Models(x=["one", Limited("later", retry_after_s=600)])
    runtime = await worker(db, IN_TURN, models)
    run_id = await play.start("it", timeout_s=60)
    await step(runtime, play, run_id)
    assert await step(runtime, play, run_id) is Status.FAILED
    state = (await play.read(run_id)).state
    assert (state.stop_reason, state.input_tokens) == ("deadline_exceeded", 7)
    await play.check_whole(run_id)


async def test_a_node_reserves_for_the_longer_prompts_of_what_is_asked_again(play, db):
    """Asked up to three times, the second and third time with one and two answers before."""
    runtime = await worker(db, CLASSIFY, Models(), max_output_tokens=1_000)
    run_id = await play.start("it")
    await step(runtime, play, run_id)
    ctx = await claim_tools_step(runtime, play, run_id)
    ctx = replace(ctx, spec=await runtime.agent(ctx.run))
    tokens, _ = most_of_nodes(ctx)
    assert 3 * 1_000 + (1 + 2) * 1_000 < tokens < 15_000


async def test_a_streamed_node_tells_that_a_model_broke_off_before_it(play, db):
    """So that whoever reads the record numbers its text as whoever saw it did."""

    class Streams(Models):
        capabilities = Capabilities()

        def get(self, name: str) -> Any:
            one = super().get(name)
            one.capabilities = self.capabilities
            chat = one.chat

            async def shown(request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
                assert on_delta is not None
                await on_delta("so")
                answer: ChatResult = await chat(request)
                return answer

            one.chat = shown
            return one

    models = Streams(x=[Permanent("no such key", code="MODEL_AUTH")], y=["so it is"])
    text = ONE.replace("MORE", "parse: text")
    runtime = await worker(db, text, models, fallback_models=["fake/y"])
    run_id = await play.start("it")
    assert await go_on(runtime, play, run_id) is Status.SUCCEEDED
    (said,) = await told(play, run_id, "model.answered")
    assert said["restarts"] == 1
    walk = Walk(db, play.tenant_id, Ref(run_id))
    (fact,) = [f for f in await walk.news() if isinstance(f, Answered)]
    assert (fact.restarts, fact.node) == (1, "so it is")
