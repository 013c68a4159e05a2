"""Messages come back byte for byte, whatever they mix."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.core.message import (
    Message,
    Text,
    ToolResult,
    ToolUse,
    block_from_json,
    dumps,
    from_json,
    loads,
    to_json,
    user,
)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\x00", "\\u0000", '"', "\\", "\u2028", "😀", "é", "é"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
texts = st.builds(Text, words)
uses = st.builds(ToolUse, words, words, json_values, st.none() | words)
results = st.builds(ToolResult, words, words) | st.builds(
    ToolResult, words, words, st.just(True), st.none() | words
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(texts | uses | results, max_size=5).map(tuple),
    st.sampled_from(["trusted", "untrusted"]),
    st.none() | json_values,
)


@given(messages)
def test_round_trip_is_byte_equal(message):
    stored = dumps(message)
    assert loads(stored) == message
    assert dumps(loads(stored)) == stored
    assert from_json(json.loads(json.dumps(to_json(message)))) == message


def test_stored_form_is_compact_and_readable():
    message = Message("assistant", (Text("né"), ToolUse("c", "f", {"b": 1, "a": 2}, "{b")))
    assert dumps(message) == (
        '{"role":"assistant","content":[{"type":"text","text":"né"},'
        '{"type":"tool_use","id":"c","name":"f","input":{"b":1,"a":2},"raw":"{b"}],"trust":"trusted"}'
    )


def test_mixed_blocks_are_read_apart():
    message = Message(
        "assistant",
        (Text("a"), ToolUse("1", "f", {}), Text("b"), ToolResult("1", "r"), ToolUse("1", "g", {})),
    )
    assert message.text() == "ab"
    assert [u.name for u in message.tool_uses()] == ["f", "g"]
    assert message.has_tool_uses()
    assert not user("hello").has_tool_uses()
    assert user("x", "untrusted").trust == "untrusted"


def test_old_rows_without_the_optional_keys_are_read():
    old = {"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}
    assert from_json(old) == Message("tool", (ToolResult("1", "x"),))


def test_unknown_block_is_refused():
    with pytest.raises(ValueError, match="'image'"):
        block_from_json({"type": "image"})
