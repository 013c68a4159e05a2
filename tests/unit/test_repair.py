"""Repairs hold what they promise, for any text and any value: nothing unlogged, nothing guessed of
what is cut off, nothing slow.
"""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.contracts.action import Illegal, Reader, hedged
from harness_common.contracts.contract import HEDGES
from harness_common.contracts.repair.calls import text_calls
from harness_common.contracts.repair.literals import python_value
from harness_common.contracts.repair.log import ABSENT, Log, Repair, replay, to_json
from harness_common.contracts.repair.names import find_name
from harness_common.contracts.repair.numbers import read_number
from harness_common.contracts.repair.shape import Rules, shape
from harness_common.contracts.repair.text import MAX_CHARS, Unreadable, read_object, strict
from harness_common.core.message import Message, Text, user
from harness_worker.steps.contract.request import as_text

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False, allow_infinity=False),
    KEYS,
    st.sampled_from(
        ["about 10", "大概 1000", "yes", "12", "{}", '["a"]', "it's", 'a "b" c', "x,\n"]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
NAMES = ("total", "unit", "note", "tags", "on", "inner")
SCHEMA = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "default": 0},
        "unit": {"enum": ["EUR", "USD", 3], "default": "EUR"},
        "note": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "number"}},
        "on": {"type": ["boolean", "null"]},
        "inner": {"$ref": "#"},
    },
    "required": ["total", "unit"],
    "additionalProperties": False,
}
NEAR = st.dictionaries(st.sampled_from((*NAMES, "Total", "unitt", "x")), VALUES, max_size=5)


@given(OBJECTS)
def test_valid_json_is_taken_as_it_is(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        if "\\u0000" not in text:
            reading = read_object(text)
            assert reading.value == value
            assert reading.repairs == ()


@given(
    OBJECTS,
    st.sampled_from(
        [
            lambda t: f"Sure:\n```json\n{t}\n```",
            lambda t: t[:-1] + ",}",
            lambda t: f"It is {t}, I think.",
            lambda t: f"<think>so</think>{t}",
            lambda t: f"{t[:1]}\n// first\n{t[1:]}",
            json.dumps,
            lambda t: t.replace('": ', '" : \ufeff'),
        ]
    ),
)
def test_what_is_read_differs_from_what_was_said_only_by_what_is_on_record(value, spoil):
    said = spoil(json.dumps(value))
    try:
        reading = read_object(said)
    except Unreadable:
        return
    assert replay(said, reading.repairs, strict) == reading.value
    try:
        as_said = strict(said)
    except ValueError:
        as_said = None
    if as_said != reading.value:
        assert reading.repairs


@given(NEAR, st.booleans(), st.booleans())
def test_a_value_that_was_changed_has_a_log_that_replays_to_it(value, guess, drop_extra):
    before = json.dumps(value)
    log = Log()
    after = shape(value, SCHEMA, log, Rules(guess, drop_extra))
    assert json.dumps(value) == before  # the argument stays
    assert bool(log.repairs) == (json.dumps(after) != before)
    again = replay(value, log.repairs, strict)
    assert json.dumps(again, sort_keys=True) == json.dumps(after, sort_keys=True)
    if not guess:
        assert not any(r.is_guess for r in log.repairs)


@given(OBJECTS.filter(bool), st.data())
def test_what_is_cut_off_is_never_read(value, data):
    whole = json.dumps(value)
    said = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(Unreadable):
        read_object(said)


@given(st.text(st.sampled_from("{}[]\"'“”:,;\\ \nanT01.-/*#`<>=_"), max_size=80))
def test_any_text_is_read_or_refused_and_what_is_read_is_on_record(said):
    try:
        reading = read_object(said)
    except Unreadable:
        return
    assert replay(said, reading.repairs, strict) == reading.value


@given(st.text(max_size=200))
def test_an_answer_is_an_action_or_refused(said):
    try:
        action = Reader(("look",)).read(said)
    except (Unreadable, Illegal):
        return
    assert action.name in {"look", "respond_directly"}


@pytest.mark.parametrize(
    "said",
    [
        '{"a": "' + '"' * 60_000,
        "{" * 60_000,
        '{"a": [' + "[" * 60_000,
        "{'a': " + "'b' " * 15_000 + "}",
        '{"a": "b" ' * 6_000 + "}",
        '{"a": "b", ' * 5_000,
        "{a: b, " * 8_000 + "}",
        "<tool_call>" * 5_000,
        "Action: x\nAction Input: " * 2_500,
        '{"a": "' + "\\" * 60_000 + '"}',
        "“" * 60_000 + "{“a”: 1}",
        '{"a": 1, /* ' + "*" * 60_000 + "}",
        "```json\n" * 7_000,
    ],
    ids=lambda said: said[:12],
)
def test_nothing_that_a_model_says_takes_long_to_read(said):
    """A worker reads for many runs at once: a slow answer of one would hold up all."""
    began = time.process_time()
    for read in (read_object, text_calls):
        try:
            read(said)
        except Unreadable:
            continue
    assert time.process_time() - began < 2.0


def test_what_is_too_long_to_repair_is_refused_and_valid_json_of_any_length_is_not():
    long = json.dumps({"a": "x" * MAX_CHARS})
    assert read_object(long).value == {"a": "x" * MAX_CHARS}
    with pytest.raises(Unreadable) as refused:
        read_object(long[:-1] + ",}")
    assert refused.value.cause == "too_long"


def test_deep_nesting_is_refused():
    for said in ('{"a":' * 70 + "1" + "}" * 70, '{"a":' * 100_000):
        with pytest.raises(Unreadable):
            read_object(said)


def test_python_is_read_only_where_it_means_the_same():
    assert python_value("{'a': True, 'b': [None, 'it\\'s']}") == {"a": True, "b": [None, "it's"]}
    for said in (
        "{'a': 'x' 'y'}",  # joined, a quote that nobody escaped would be lost
        "{'a': '\\d'}",
        "{'a': (1, 2)}",
        "{'a': {1, 2}}",
        "{'a': b'x'}",
        "{1: 'a'}",
        "{'a': 1e999}",
        "{'a': open('/etc/passwd')}",
        "['a']",
    ):
        assert python_value(said) is None, said


@pytest.mark.parametrize(
    ("text", "value", "exact"),
    [
        ("10", 10, True), ("-3.5", -3.5, True), ("1,000", 1000, True), ("1e3", 1000.0, True),
        ("about 1000", 1000, False), ("大概1000个", 1000, False), ("~1k", 1000, False),
        ("1.5 million", 1_500_000, False), ("two dozen", 24, False), ("a couple of", 2, False),
        ("三十五", 35, False), ("一万二千", 12_000, False), ("twenty-five", 25, False),
        ("three hundred and five", 305, False), ("约两百条", 200, False),
    ],
)  # fmt: skip
def test_numbers_are_read(text, value, exact):
    assert read_number(text) == (value, exact)


@pytest.mark.parametrize(
    "text",
    ["", "a", "many", "10 or 20", "10-20", "version 2", "50%", "two three", "ten five", "1e999",
     "2024-01-05", "12abc", "1" * 200, "no. 5", "three blind mice"],
)  # fmt: skip
def test_what_says_no_number_or_more_than_one_is_none(text):
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("readFile", ("read_file", "form")), ("functions.read_file", ("read_file", "form")),
        ("cat", ("read_file", "synonym")), ("reed_file", ("read_file", "similar")),
        ("remove", None), ("read_fyles_of_all", None), ("write", None),
    ],
)  # fmt: skip
def test_names_are_found_by_form_synonym_and_likeness(said, found):
    known = ("read_file", "write_file", "web_search")
    assert find_name(said, known, {"cat": "read_file", "dog": "no_such"}) == found


def test_a_name_between_two_is_nobodys():
    assert find_name("file_rite", ("file_write", "file_write2", "file_read")) is None


def test_hedges_are_words_and_not_parts_of_words():
    assert hedged("Maybe it is there", HEDGES) == "maybe"
    assert hedged("我可能需要查一下", HEDGES) == "可能"
    assert hedged("let's try the other one", HEDGES) == "let's try"
    assert hedged("The entry is maybelline", HEDGES) is None
    assert hedged("I will search for it", HEDGES) is None


def test_a_log_is_bounded_and_clean_when_it_is_shown():
    repairs = [Repair(f"/{i}", "coerced", "secret " + "x" * 1000, ABSENT) for i in range(100)]
    shown = to_json(repairs, lambda text: text.replace("secret", "[redacted]"))
    assert len(shown) == 32
    assert len(json.dumps(shown)) < 32 * 500
    assert "secret" not in json.dumps(shown)
    assert shown[0]["after"] is None


def test_a_replay_over_something_else_fails():
    with pytest.raises(ValueError, match="not what coerced began with"):
        replay({"a": 1}, [Repair("/a", "coerced", 2, 3)], strict)


def test_a_conversation_as_text_has_every_word_and_no_call():
    from harness_common.core.message import ToolResult, ToolUse

    said = Message("assistant", (Text('{"thought": "t"}'), ToolUse("u", "look", {"q": 1})))
    native = Message("assistant", (ToolUse("v", "look", {"q": 2}),))
    gave = Message("tool", (ToolResult("u", "result A"),), "untrusted")
    failed = Message("tool", (ToolResult("v", "no", True, "TIMEOUT"),))
    told = list(as_text([user("hi"), said, gave, native, failed]))
    assert [m.role for m in told] == ["user", "assistant", "user", "assistant", "user"]
    assert told[1].text() == '{"thought": "t"}'
    assert "look gave:\nresult A" in told[2].text()
    assert told[2].trust == "untrusted"
    assert '"q":2' in told[3].text()
    assert "look failed (TIMEOUT):\nno" in told[4].text()


def test_an_integer_that_no_float_holds_is_left_to_the_validator() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    value = {"n": 10**400}
    assert shape(value, schema, Log()) == value
