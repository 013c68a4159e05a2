"""The scripted model follows the conversation and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness_common.contracts.model import ChatRequest, ChatResult
from harness_common.core.errors import Permanent, Transient
from harness_common.core.message import Message, Text, ToolResult, ToolUse, user
from harness_worker.models.scripted import Scripted


def play(script: Any, *conversation: Message, attempt: int | None = None) -> ChatResult:
    options = {"script": script} | ({} if attempt is None else {"attempt": attempt})
    request = ChatRequest("scripted/demo", (user("Go."), *conversation), options=options)
    return asyncio.run(Scripted("demo").chat(request))


def said(text: str = "ok", *blocks: Any) -> Message:
    return Message("assistant", (Text(text), *blocks))


def result(text: str, role: Any = "tool") -> Message:
    return Message(role, (ToolResult("c", text),))


def test_the_scripted_answer_follows_the_conversation():
    script = [{"text": "one"}, {"text": "two", "continue": True}]
    first = play(script)
    assert (first.message.text(), first.finish, first.model) == ("one", "stop", "scripted/demo")
    assert first.cost_usd == 0
    assert first == play(script)
    second = play(script, said(), result("r", role="user"))
    assert (second.message.text(), second.finish) == ("two", "pause")
    assert play(script, said(), said(), user("again")).message.text() == "one"
    with pytest.raises(Permanent) as caught:
        play(script, said(), said())
    assert caught.value.error_code == "SCRIPT_EXHAUSTED"


def test_the_script_refers_to_results():
    a, b = "art_" + "a" * 32, "art_" + "b" * 32
    before = (said(), result(f"see {a} {{{{result:2}}}}"), said(), result(f"{a} and {b}"))
    script = [
        {},
        {},
        {
            "text": "{{result:1}} | {{last_result}}",
            "tools": [
                {"name": "t", "input": {"x": ["{{artifact:2}}", 1], "y": {"z": "{{artifact:1}}"}}}
            ],
        },
    ]
    got = play(script, *before)
    assert got.message.text() == f"see {a} {{{{result:2}}}} | {a} and {b}"
    assert got.message.tool_uses() == (ToolUse("call_3_1", "t", {"x": [b, 1], "y": {"z": a}}),)
    for reference in ("{{artifact:1}}", "{{last_result}}", "{{result:0}}"):
        with pytest.raises(Permanent) as caught:
            play([{"text": reference}])
        assert caught.value.error_code == "SCRIPT_REFERENCE"


def test_scripted_errors_end_after_their_times():
    script = [{"error": "transient", "times": 2, "text": "at last"}]
    for attempt in (None, 1, 2):
        with pytest.raises(Transient):
            play(script, attempt=attempt)
    assert play(script, attempt=3).message.text() == "at last"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (None, "SCRIPT_MISSING"),
        ([], "SCRIPT_MISSING"),
        ([{"txt": "x"}], "SCRIPT_INVALID"),
        (["x"], "SCRIPT_INVALID"),
        ([{"error": "odd"}], "SCRIPT_INVALID"),
    ],
)
def test_a_wrong_script_says_where(script, code):
    with pytest.raises(Permanent) as caught:
        play(script)
    assert caught.value.error_code == code
