"""The contract of answers, through whole steps over a real Postgres with the scripted model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, OnDelta
from harness_common.core.message import Message, ToolUse
from harness_worker.advance import answer
from harness_worker.models.scripted import Scripted
from tests.store.play import make_key, sql
from tests.worker.runtime import make_runtime
from tests.worker.tool_steps import a_tool, events

SCHEMA = {
    "type": "object",
    "properties": {
        "total": {"type": "integer"},
        "unit": {"enum": ["EUR", "USD"], "default": "EUR"},
    },
    "required": ["total", "unit"],
    "additionalProperties": False,
}
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["q"],
}


class ScriptModels:
    """Every model is the scripted one, with these capabilities; what it is asked is kept."""

    def __init__(self, **can: Any) -> None:
        self.asked: list[ChatRequest] = []
        self._model = Scripted("x")
        self.provider = self._model.provider
        self.scope = self._model.scope
        self.capabilities = Capabilities(scripted=True, streaming=False, **can)
        self.uses: tuple[ToolUse, ...] = ()
        """Calls that the next answer asks for, as a provider read them."""

    def get(self, name: str) -> ScriptModels:
        del name
        return self

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked.append(request)
        result = await self._model.chat(request, on_delta)
        if self.uses:
            message = Message("assistant", result.message.content + self.uses)
            result, self.uses = replace(result, message=message, finish="tool_calls"), ()
        return result


async def make(db, script, *, can=None, tools=(), **fields):
    """Make a worker, and give the tenant's agent this script."""
    runtime = await make_runtime(db, tools=tools)
    models = ScriptModels(**(can or {}))
    runtime.models = models  # type: ignore[assignment]
    spec = AgentSpec(
        model_options={"script": script}, tools=tuple(t.spec.name for t in tools), **fields
    )
    await sql(db, "UPDATE agents SET spec = cast(:s AS jsonb)", s=spec.model_dump_json())
    return runtime, models


async def run_to_rest(runtime, play, run_id):
    """Answer doorbells until the run is over or waits."""
    for _ in range(20):
        run = await play.read(run_id)
        if str(run.state.status) != "running":
            return run
        await answer(runtime, play.tenant_id, run_id, run.version)
    raise AssertionError("the run does not end")


async def look(ctx, q, n=1):
    return f"{q} x {n}"


def a_look(effect="read", **fields):
    return a_tool("look", effect, look, input_schema=TOOL_SCHEMA, **fields)


def act(name, input_, confidence=0.9, thought="because"):
    action = {"name": name, "input": input_, "confidence": confidence}
    return {"text": json.dumps({"thought": thought, "action": action}, ensure_ascii=False)}


DIRECT = act("respond_directly", {})


async def test_an_output_is_given_in_canonical_form(play, db):
    said = '```json\n{"unit": "eur", "total": "大概 1000", "note": "x"}\n```'
    runtime, models = await make(db, [{"text": said}], output_schema=SCHEMA)
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == '{"total":1000,"unit":"EUR"}'
    assert run.state.stop_reason == "final_answer"
    (told,) = await events(play, run_id, "answer.")
    assert told["type"] == "answer.repaired"
    kinds = [entry["kind"] for entry in told["payload"]["repair_log"]]
    assert kinds[0] == "fence"
    assert sorted(kinds[1:]) == ["enum_form", "extra_field", "number_in_words"]
    (counted,) = await sql(db, "SELECT * FROM repairs WHERE run_id = :r", r=run_id)
    assert counted["kinds"] == dict.fromkeys(kinds, 1)
    assert models.asked[0].answer_schema == SCHEMA
    assert "JSON Schema" in models.asked[0].system


async def test_an_output_that_has_not_the_form_is_asked_for_again_with_what_was_said(play, db):
    script = [{"text": "It is a lot."}, {"text": '{"total": 7, "unit": "USD"}'}]
    runtime, models = await make(db, script, output_schema=SCHEMA)
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == '{"total":7,"unit":"USD"}'
    hint = models.asked[1].messages[-1].text()
    assert "It is a lot." in hint
    assert "no JSON object" in hint
    assert '"total"' in hint
    assert [e["type"] for e in await events(play, run_id, "answer.")] == ["answer.refused"]
    assert "contract" not in run.state.memo


async def test_a_run_ends_with_an_explanation_when_the_form_never_comes(play, db):
    script = [{"text": f'{{"total": "none", "unit": "EUR", "try": {i}}}'} for i in range(5)]
    runtime, models = await make(db, script, output_schema=SCHEMA, contract={"reasks": 1})
    run = await run_to_rest(runtime, play, await play.start())
    assert (str(run.state.status), run.state.stop_reason) == ("failed", "contract_violated")
    assert len(models.asked) == 2
    assert run.state.error["code"] == "CONTRACT_VIOLATED"
    detail = run.state.error["detail"]
    assert detail["problems"][0]["at"] == "total"
    assert '"try": 1' in detail["last_answer"]
    assert detail["expected"] == SCHEMA


async def test_the_last_answer_that_a_run_may_take_is_explained_not_asked_for_again(play, db):
    script = [{"text": "It is a lot."}, {"text": '{"total": 7, "unit": "USD"}'}]
    runtime, models = await make(db, script, output_schema=SCHEMA, max_turns=1)
    run_id = await play.start()
    await sql(
        db,
        "UPDATE runs SET limits = jsonb_set(limits, '{max_turns}', '1') WHERE id = :r",
        r=run_id,
    )
    run = await run_to_rest(runtime, play, run_id)
    assert (str(run.state.status), run.state.stop_reason) == ("failed", "contract_violated")
    assert len(models.asked) == 1


async def test_without_repair_what_is_nearly_right_is_asked_for_again(play, db):
    script = [{"text": 'So: {"total": 1, "unit": "EUR"}'}, {"text": '{"total": 1, "unit": "EUR"}'}]
    runtime, models = await make(db, script, output_schema=SCHEMA, contract={"repair": False})
    run = await run_to_rest(runtime, play, await play.start())
    assert run.state.output == '{"total":1,"unit":"EUR"}'
    assert len(models.asked) == 2


async def test_an_output_schema_of_the_run_goes_before_the_agents(play, db):
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    runtime, _ = await make(db, [{"text": '{"x": "3"}'}], output_schema=SCHEMA)
    run = await run_to_rest(runtime, play, await play.start(output_schema=schema))
    assert run.state.output == '{"x":3}'


async def test_a_model_without_tool_calls_asks_by_the_action_schema(play, db):
    script = [act("look", {"q": "a", "n": "2"}), DIRECT, {"text": "It is a x 2."}]
    runtime, models = await make(db, script, can={"tools": False}, tools=[a_look()])
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == "It is a x 2."
    (call,) = await play.calls(run_id)
    assert (call["name"], call["arguments"], call["status"]) == (
        "look",
        {"q": "a", "n": 2},
        "succeeded",
    )
    first, second, third = models.asked
    assert not first.tools
    assert "look, respond_directly" in first.system
    assert first.answer_schema["properties"]["action"]["properties"]["name"]["enum"] == [
        "look",
        "respond_directly",
    ]
    assert second.messages[-2].text() == script[0]["text"]  # literally what it said
    assert second.messages[-1].role == "user"
    assert "a x 2" in second.messages[-1].text()
    assert third.answer_schema is None
    assert not any(m.has_tool_uses() for m in third.messages)


async def test_an_action_and_an_output_schema_go_together(play, db):
    script = [DIRECT, {"text": "{'total': 5, 'unit': 'USD'}"}]
    runtime, models = await make(
        db, script, can={"tools": False}, tools=[a_look()], output_schema=SCHEMA
    )
    run = await run_to_rest(runtime, play, await play.start())
    assert run.state.output == '{"total":5,"unit":"USD"}'
    assert models.asked[1].answer_schema == SCHEMA


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (act("rm_all", {}), "no action"),
        (act("look", {}), "required"),
        ({"text": "I would look it up."}, "no JSON object"),
        (act("look", {"q": "x", "zz": 1}), "not a field"),
    ],
)
async def test_an_illegal_action_is_refused_with_guidance(play, db, said, cause):
    runtime, models = await make(
        db, [said, DIRECT, {"text": "ok"}], can={"tools": False}, tools=[a_look()]
    )
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == "ok"
    assert await play.calls(run_id) == []
    hint = models.asked[1].messages[-1].text()
    assert cause in hint
    assert "look, respond_directly" in hint
    (told, *_) = await events(play, run_id, "answer.")
    assert (told["type"], told["payload"]["level"]) == ("answer.refused", 2)


@pytest.mark.parametrize(
    ("effect", "status"), [("read", "succeeded"), ("write", "waiting_approval")]
)
async def test_an_unsure_write_waits_for_a_person_and_an_unsure_read_does_not(
    play, db, effect, status
):
    script = [act("look", {"q": "a"}, confidence=0.2), DIRECT, {"text": "ok"}]
    runtime, _ = await make(db, script, can={"tools": False}, tools=[a_look(effect)])
    run_id = await play.start(created_by=await make_key(db, play.tenant_id))
    run = await run_to_rest(runtime, play, run_id)
    assert str(run.state.status) == status
    (doubted,) = await events(play, run_id, "answer.doubted")
    why = "its confidence is 0.2, below 0.3"
    assert doubted["payload"]["why"] == why
    if effect == "write":
        assert run.state.waiting["calls"][0]["reasons"] == [why]


async def test_a_hedge_makes_unsure_and_confirming_can_be_switched_off(play, db):
    script = [act("look", {"q": "a"}, thought="大概是这个"), DIRECT, {"text": "ok"}]
    runtime, _ = await make(
        db, script, can={"tools": False}, tools=[a_look("write")], contract={"confirm": "never"}
    )
    run_id = await play.start(created_by=await make_key(db, play.tenant_id))
    run = await run_to_rest(runtime, play, run_id)
    assert str(run.state.status) == "succeeded"
    (doubted,) = await events(play, run_id, "answer.doubted")
    assert (doubted["payload"]["confirm"], doubted["payload"]["level"]) == (False, 1)


def asking(name, arguments):
    """A native call as a provider gives it: text that is no object is kept as it came."""
    if isinstance(arguments, str):
        return (ToolUse("call_1", name, {}, arguments),)
    return (ToolUse("call_1", name, arguments),)


@pytest.mark.parametrize(
    ("name", "said", "kinds"),
    [
        ("look", "{'q': 'a', 'n': 2}", {"python_literal": 1}),
        ("look", {"q": "a", "n": "about 2"}, {"number_in_words": 1}),
        ("Look", {"q": "a", "n": 2}, {"name_form": 1}),
        ("look", {"q": "a", "n": "2"}, {"coerced": 1}),
    ],
)
async def test_a_native_call_that_is_nearly_right_is_repaired(play, db, name, said, kinds):
    runtime, models = await make(db, [{"text": ""}, {"text": "ok"}], tools=[a_look()])
    models.uses = asking(name, said)
    run_id = await play.start()
    await run_to_rest(runtime, play, run_id)
    (call,) = await play.calls(run_id)
    assert (call["name"], call["arguments"], call["result"]) == (
        "look",
        {"q": "a", "n": 2},
        "a x 2",
    )
    (told,) = await events(play, run_id, "answer.repaired")
    assert told["payload"]["kinds"] == kinds
    assert told["payload"]["call"] == "2.0"


@pytest.mark.parametrize(
    "said", ['{"q": "a", "n": 2', '{"q": "a', {"q": "a", "n": "about 2"}, '{"q": "a" "n": 2}']
)
async def test_a_write_is_never_guessed(play, db, said):
    runtime, models = await make(db, [{"text": ""}, {"text": "ok"}], tools=[a_look("write")])
    models.uses = asking("look", said)
    run_id = await play.start(created_by=await make_key(db, play.tenant_id))
    await run_to_rest(runtime, play, run_id)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["error_type"]) == ("rejected", "ARGUMENTS_INVALID")
    assert await events(play, run_id, "answer.repaired") == []


async def test_a_call_that_a_server_left_in_the_text_is_made(play, db):
    said = '<tool_call>\n{"name": "look", "arguments": {"q": "a"}}\n</tool_call>'
    runtime, _ = await make(db, [{"text": said}, {"text": "ok"}], tools=[a_look()])
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == "ok"
    assert [c["result"] for c in await play.calls(run_id)] == ["a x 1"]


async def test_a_call_in_the_text_that_is_cut_off_is_asked_for_again(play, db):
    said = '<tool_call>\n{"name": "look", "arguments": {"q": "a'
    runtime, models = await make(db, [{"text": said}, {"text": "ok"}], tools=[a_look()])
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == "ok"
    assert "before it is complete" in models.asked[1].messages[-1].text()


async def database(ctx, q, n=1):
    raise AssertionError("nobody may call it")


async def test_a_tool_that_may_not_be_called_degrades_to_its_declared_fallback(play, db):
    """L3: who may not query the database searches the web."""
    query = a_tool(
        "query_db", "read", database, input_schema=TOOL_SCHEMA,
        permission_tags=frozenset({"db"}), fallback="look",
    )  # fmt: skip
    script = [{"tools": [{"name": "query_db", "input": {"q": "a"}}]}, {"text": "ok"}]
    runtime, models = await make(db, script, tools=[query, a_look()])
    run_id = await play.start()  # by nobody: without a role no tag is allowed
    await run_to_rest(runtime, play, run_id)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["served_by"]) == ("succeeded", "look")
    assert "a x 1" in call["result"]
    (told,) = await events(play, run_id, "tool.degraded")
    assert (told["payload"]["fallback"], told["payload"]["why"]) == ("look", "PERMISSION_DENIED")
    assert "fallback tool look" in models.asked[1].messages[-1].content[0].content


async def test_a_fallback_that_may_not_be_called_either_leaves_the_denial(play, db):
    tags = frozenset({"db"})
    query = a_tool(
        "query_db", "read", database, input_schema=TOOL_SCHEMA, permission_tags=tags,
        fallback="look",
    )  # fmt: skip
    script = [{"tools": [{"name": "query_db", "input": {"q": "a"}}]}, {"text": "ok"}]
    runtime, _ = await make(db, script, tools=[query, a_look(permission_tags=tags)])
    run_id = await play.start()
    await run_to_rest(runtime, play, run_id)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["error_type"]) == ("rejected", "PERMISSION_DENIED")
    assert "Its fallback look was not called" in call["result"]


async def test_the_example_of_the_documentation_runs(play, db):
    path = Path(__file__).parents[2] / "examples" / "invoice.yaml"
    fields = yaml.safe_load(path.read_text())
    script = fields.pop("model_options")["script"]
    runtime, models = await make(db, script, **fields)
    run_id = await play.start()
    run = await run_to_rest(runtime, play, run_id)
    assert run.state.output == '{"currency":"EUR","paid":false,"total":120}'
    assert len(models.asked) == 2
    told = [e["type"] for e in await events(play, run_id, "answer.")]
    assert told == ["answer.refused", "answer.repaired"]


async def test_secrets_are_not_in_the_record_of_repairs(play, db):
    said = '{"total": 1, "unit": "EUR", "key": "sk-verysecretvalue123456"}'
    runtime, _ = await make(db, [{"text": said}], output_schema=SCHEMA)
    run_id = await play.start()
    await run_to_rest(runtime, play, run_id)
    (told,) = await events(play, run_id, "answer.repaired")
    assert "verysecret" not in json.dumps(told["payload"])
    assert "[redacted]" in json.dumps(told["payload"])
