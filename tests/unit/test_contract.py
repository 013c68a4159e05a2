"""What a step's contract makes of an answer, and what it asks a model for; no database."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness_common.contracts.action import action_prompt
from harness_common.contracts.contract import ContractSpec
from harness_common.contracts.model import ChatRequest, ChatResult, ToolDef, Usage
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.doubt import doubt_about
from harness_common.core.message import Message, Text, ToolUse, user
from harness_common.core.policy import Facts, Policies, Policy, Rule, Verdict, decide
from harness_worker.steps.contract.answer import read_by
from harness_worker.steps.contract.request import contracted
from harness_worker.steps.contract.terms import Terms

ARGUMENTS = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
LOOK = ToolSpec("look", "Look it up.", ARGUMENTS, EffectClass.READ)
SAVE = ToolSpec("save", "Keep it.", ARGUMENTS, EffectClass.WRITE)
OUTPUT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def terms(spec=None, **more):
    return Terms(spec or ContractSpec(), {"look": LOOK, "save": SAVE}, 4, **more)


def answer(*blocks, finish="stop"):
    blocks = tuple(Text(b) if isinstance(b, str) else b for b in blocks)
    return ChatResult(Message("assistant", blocks), Usage(), finish, "x")


def act(name, confidence=0.9, thought="t", **input_):
    action = {"name": name, "input": input_, "confidence": confidence}
    return answer(json.dumps({"thought": thought, "action": action}, ensure_ascii=False))


@pytest.mark.parametrize(
    ("confirm", "name", "waits"),
    [
        ("never", "save", False), ("writes", "save", True), ("all", "save", True),
        ("writes", "look", False), ("all", "look", True),
    ],
)  # fmt: skip
def test_which_unsure_calls_wait_for_a_person(confirm, name, waits):
    by = terms(ContractSpec(confirm=confirm), by_actions=True)
    read = read_by(by, act(name, 0.29, q="a"))
    (event,) = read.guidance.events
    assert (event.type, event.payload["level"], event.payload["call"]) == (
        "answer.doubted", 1, "5.0",
    )  # fmt: skip
    assert event.payload["confirm"] is waits
    assert (doubt_about(read.guidance.memo, 0) is not None) is waits
    assert doubt_about(read.guidance.memo, 1) is None
    assert read_by(by, act(name, 0.3, q="a")).guidance.events == ()


def test_words_beside_native_calls_count_only_when_asked_for():
    said = answer("Maybe this helps.", ToolUse("c", "save", {"q": "a"}), finish="tool_calls")
    assert read_by(terms(), said).guidance.events == ()
    watched = read_by(terms(ContractSpec(watch_text=True)), said)
    assert doubt_about(watched.guidance.memo, 0) == "the model says 'maybe'"


def test_a_doubt_is_about_one_answer_only():
    sure = answer(ToolUse("c", "save", {"q": "a"}), finish="tool_calls")
    before = {"doubt": {"0": "x"}}
    assert read_by(terms(memo=before), sure).guidance.memo == {"contract": None}


def test_a_doubted_call_is_asked_about_whatever_rule_allows_it_and_never_what_is_denied():
    rules = (Rule("r", Verdict.ALLOW),)
    doubted = Facts(tool="save", effect="write", doubt="its confidence is 0.1")
    for policies in (Policies(), Policies(agent=Policy(1, rules))):
        decision = decide(doubted, policies)
        assert (decision.verdict, decision.rule) == (Verdict.ASK, "builtin.doubt")
        assert decision.reasons == ("its confidence is 0.1",)
    denied = Policies(tenant=Policy(1, (Rule("no", Verdict.DENY),)))
    assert decide(doubted, denied).verdict is Verdict.DENY
    sure = Facts(tool="save", effect="write")
    assert decide(sure).verdict is Verdict.ALLOW
    assert "doubt" not in sure.to_json()
    kept = decide(doubted).to_json()
    assert decide(Facts.from_json(kept["facts"], None)).verdict is Verdict.ASK


def test_asking_again_is_bounded_and_in_a_row():
    by = terms(ContractSpec(reasks=2), output_schema=OUTPUT)
    first = read_by(by, answer("no")).guidance
    assert (first.again, first.memo) == (True, {"contract": {"reasks": 1}})
    second = read_by(replace(by, memo=first.memo["contract"]), answer("no")).guidance
    assert second.memo == {"contract": {"reasks": 2}}
    third = read_by(replace(by, memo=second.memo["contract"]), answer("no")).guidance
    assert (third.again, third.stop) == (False, "contract_violated")
    assert third.messages == ()
    fine = read_by(replace(by, memo=second.memo["contract"]), answer('{"x": 1}')).guidance
    assert fine.memo == {"contract": None}


def test_an_answer_that_was_cut_off_is_told_to_be_brief():
    by = terms(output_schema=OUTPUT)
    told = read_by(by, answer('{"x": 1', finish="length")).guidance.messages[0].text()
    assert "cut off at the limit of one answer" in told
    assert read_by(by, answer('{"x": 1}', finish="length")).guidance.output == '{"x":1}'


@pytest.mark.parametrize("finish", ["refusal", "pause"])
def test_what_is_no_answer_yet_is_left_alone(finish):
    said = answer("I will not.", finish=finish)
    read = read_by(terms(output_schema=OUTPUT, by_actions=True), said)
    assert read.answer is said
    assert not read.guidance.again


def test_an_answer_given_with_respond_directly_is_taken_at_once():
    read = read_by(terms(by_actions=True), act("respond_directly", answer="It is 3."))
    assert (read.guidance.again, read.guidance.output) == (False, "It is 3.")
    both = terms(by_actions=True, output_schema=OUTPUT)
    assert read_by(both, act("respond_directly", answer={"x": "3"})).guidance.output == '{"x":3}'
    assert read_by(both, act("respond_directly", answer="three")).guidance.again


def test_without_repair_a_nearly_right_action_or_call_is_left_as_it_is():
    exact = ContractSpec(repair=False)
    fenced = answer("```json\n" + act("look", q="a").message.text() + "\n```")
    assert read_by(terms(exact, by_actions=True), fenced).guidance.again
    use = ToolUse("c", "look", {}, "{'q': 'a'}")
    read = read_by(terms(exact), answer(use, finish="tool_calls"))
    assert read.answer.message.tool_uses() == (use,)
    assert read.repairs == ()


def test_the_name_of_a_tool_that_is_hidden_now_means_no_other():
    by = terms(hidden=frozenset({"looks"}))
    slip = answer(ToolUse("c", "loook", {"q": "a"}), finish="tool_calls")
    assert read_by(by, slip).answer.message.tool_uses()[0].name == "look"
    hidden = answer(ToolUse("c", "looks", {"q": "a"}), finish="tool_calls")
    assert read_by(by, hidden).answer.message.tool_uses()[0].name == "looks"
    assert read_by(replace(by, by_actions=True), act("looks", q="a")).guidance.again
    assert not read_by(replace(by, by_actions=True), act("loook", q="a")).guidance.again


REQUEST = ChatRequest(
    "x", (user("hi"),), system="Be kind.", tools=(ToolDef("look", "Look it up.", ARGUMENTS),)
)


def test_the_request_of_a_native_model_is_left_as_it_is():
    assert contracted(REQUEST, terms()) is REQUEST


def test_a_schema_is_told_and_the_server_is_held_to_it_only_without_tools():
    told = contracted(REQUEST, terms(output_schema=OUTPUT))
    assert told.system.startswith("Be kind.\n\nYour final answer is one JSON object")
    assert json.dumps(OUTPUT, separators=(",", ":")) in told.system
    assert told.answer_schema is None
    assert told.tools == REQUEST.tools
    bare = contracted(replace(REQUEST, tools=()), terms(output_schema=OUTPUT))
    assert bare.answer_schema == OUTPUT


def test_the_prompt_lists_the_whitelist_and_forbids_the_rest():
    prompt = action_prompt(REQUEST.tools)
    assert "exactly one of: look, respond_directly." in prompt
    assert "There are no other actions, and no other fields" in prompt
    assert '"required":["q"]' in prompt
    told = contracted(REQUEST, terms(by_actions=True))
    assert told.tools == ()
    assert told.answer_schema["additionalProperties"] is False


def test_the_prompt_is_the_same_in_every_step():
    """A prefix that changes would be paid for again with every call."""
    by = terms(by_actions=True, output_schema=OUTPUT)
    later = replace(by, step=99, memo={"reasks": 1})
    assert contracted(REQUEST, by).system == contracted(REQUEST, later).system
