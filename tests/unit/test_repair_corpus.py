"""The corpus of malformed answers (`tests/corpus/repairs`): each is read as it was meant, or
refused because reading it would be guessing. Whatever is changed is on record; the record replays.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness_common.contracts.contract import ContractSpec
from harness_common.contracts.model import ChatResult, Usage
from harness_common.contracts.repair.log import replay
from harness_common.contracts.repair.text import strict
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.errors import Invalid
from harness_common.core.message import Message, Text, ToolUse
from harness_worker.steps.contract.answer import read_by
from harness_worker.steps.contract.terms import Terms
from harness_worker.tools.validate import schema_problems, validate_arguments

FILES = sorted((Path(__file__).parent.parent / "corpus" / "repairs").glob("*.json"))
CASES = [
    (path.stem, found["reads"], case)
    for path in FILES
    for found in [json.loads(path.read_text())]
    for case in found["cases"]
]


def named(found):
    """Name a case for the report."""
    return f"{found[0]}: {found[2]['name']}"


def a_tool(name, effect, required, **fields):
    schema = {"type": "object", "properties": fields, "required": required}
    return ToolSpec(name, "A tool.", schema, EffectClass(effect))


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TOOLS = {
    t.name: t
    for t in (
        a_tool("web_search", "read", ["query"], query=TEXT, limit={**WHOLE, "default": 10}),
        a_tool("file_read", "read", ["path"], path=TEXT),
        a_tool(
            "file_write", "write", ["path", "content"],
            path=TEXT, content=TEXT, overwrite={"type": "boolean"},
        ),
        a_tool("send_payment", "write", ["amount", "to"], amount=WHOLE, to=TEXT),
    )
}  # fmt: skip
OUTPUT = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 0},
        "currency": {"enum": ["EUR", "USD"], "default": "EUR", "x-synonyms": {"euros": "EUR"}},
        "status": {"enum": ["open", "paid", "cancelled"], "default": "open"},
        "kind": {"enum": ["invoice", "receipt"]},
        "paid": {"type": "boolean"},
        "due": {"type": ["number", "null"]},
        "note": TEXT,
        "tags": {"type": "array", "items": TEXT},
        "scores": {"type": "array", "items": {"type": "number"}},
        "buyer": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "required": ["total", "currency"],
    "additionalProperties": False,
    "$defs": {
        "line": {
            "type": "object",
            "properties": {"sku": TEXT, "count": WHOLE},
            "required": ["sku", "count"],
        }
    },
}
SPEC = ContractSpec(synonyms={"google": "web_search"})


def terms_for(reads):
    output = OUTPUT if reads == "output" else None
    return Terms(SPEC, TOOLS, 1, output_schema=output, by_actions=reads == "action")


def read(reads, case):
    said = case["said"]
    block: Text | ToolUse
    if reads == "arguments":
        raw = said if isinstance(said, str) else None
        block = ToolUse("c", case["tool"], {} if raw is not None else said, raw)
    else:
        block = Text(said)
    finish = case.get("finish", "tool_calls" if reads == "arguments" else "stop")
    answer = ChatResult(Message("assistant", (block,)), Usage(), finish, "x")
    return read_by(terms_for(reads), answer)


def value_of(reads, got):
    """Return what an answer was read as; "refuse" when it was not."""
    guidance, uses = got.guidance, got.answer.message.tool_uses()
    if reads == "output":
        return "refuse" if guidance.output is None else json.loads(guidance.output)
    if reads == "calls":
        none = "refuse" if guidance.again else "text"
        return [{"name": u.name, "arguments": u.input} for u in uses] or none
    if reads == "arguments":
        (use,) = uses
        try:
            validate_arguments(TOOLS[use.name], use.raw if use.raw is not None else use.input)
        except Invalid:
            return "refuse"
        return use.input
    if uses:
        return {"name": uses[0].name, "input": uses[0].input}
    answers_next = (guidance.memo.get("contract") or {}).get("answering")
    return {"name": "respond_directly", "input": {}} if answers_next else "refuse"


def test_the_corpus_is_large_and_has_both_sorts():
    wants = [case["want"] for _, _, case in CASES]
    assert len(wants) >= 120
    assert wants.count("refuse") >= 40


@pytest.mark.parametrize(("reads", "case"), [c[1:] for c in CASES], ids=map(named, CASES))
def test_an_answer_is_read_as_it_was_meant(reads, case):
    got = read(reads, case)
    want = case["want"]
    confidence = want.pop("confidence", None) if isinstance(want, dict) else None
    assert value_of(reads, got) == want
    if want == "refuse":
        if reads != "arguments":
            assert got.guidance.again
            (event,) = got.guidance.events
            assert event.payload["problems"]
        else:
            assert got.repairs == ()
        return
    if "kinds" in case:
        assert sorted({r.kind for r in got.repairs}) == sorted(set(case["kinds"]))
    if confidence is not None:
        (done,) = [r.after for r in got.repairs if r.at == "/action/confidence"]
        assert done == confidence
    logged = [e for e in got.guidance.events if e.type == "answer.repaired"]
    assert sum(e.payload["repairs"] for e in logged) == len(got.repairs)
    assert all(e.payload["repair_log"] for e in logged)


READ = [c for c in CASES if c[2]["want"] != "refuse" and c[1] != "calls"]


@pytest.mark.parametrize(("reads", "case"), [c[1:] for c in READ], ids=map(named, READ))
def test_the_record_replays_to_what_was_read(reads, case):
    got = read(reads, case)
    said = case["said"]
    value = replay(said, got.repairs, strict)
    if reads == "output":
        assert value == json.loads(got.guidance.output)
        assert schema_problems(OUTPUT, value) == []
    elif reads == "arguments":
        assert value == got.answer.message.tool_uses()[0].input
    elif got.answer.message.has_tool_uses():
        (use,) = got.answer.message.tool_uses()
        assert (value["action"]["name"], value["action"]["input"]) == (use.name, use.input)
