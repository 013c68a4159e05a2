"""Values are blotted out whatever they are written as, and only where they are somebody's own."""

from __future__ import annotations

import base64
import io
import json
from urllib.parse import quote, quote_plus
from uuid import uuid4

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from harness_common import redaction
from harness_common.redaction import (
    MARK,
    MAX_TENANT_CHARS,
    MIN_BYTES,
    CleanStream,
    Redactor,
    clean_line,
)

MINE, THEIRS = uuid4(), uuid4()
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=6, max_size=60)


def known(*values):
    found = Redactor()
    for value in values:
        found.add(MINE, value)
    return found


@given(VALUES, st.binary(max_size=5), st.binary(max_size=5))
def test_every_encoding_is_blotted_out_wherever_it_begins(value, before, after):
    raw, redactor = value.encode(), known(value)
    assert redactor.clean(MINE, f"a {value} b") == f"a {MARK} b"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + raw + after).decode()
        cleaned = redactor.clean(MINE, text)
        assert MARK in cleaned
        # What is left of it is the bits it shares with its neighbours: under a byte on each side.
        assert len(cleaned) - len(MARK) <= (len(before) + len(after)) * 4 / 3 + 8
    for text in (raw.hex(), raw.hex().upper(), json.dumps(value), json.dumps([value])):
        assert MARK in redactor.clean(MINE, text)
    for text in (quote(value), quote(value, safe=""), quote_plus(value)):
        assert MARK in redactor.clean(MINE, f"?key={text}&")


def test_lower_case_escapes_of_a_url():
    assert known("a/b+c&d=e").clean(MINE, "x=a%2fb%2bc%26d%3de") == f"x={MARK}"


def test_the_longest_is_blotted_out_first():
    assert known("hunter", "hunter-and-more").clean(MINE, "hunter-and-more") == MARK


def test_the_mark_is_not_blotted_out_itself():
    assert known("redacted", "hunter22").clean(MINE, "hunter22") == MARK


def test_json_is_cleaned_in_keys_and_depth_and_stays_json():
    redactor = known("hunter22")
    value = {"a": ["x hunter22", 1, None, {"hunter22": True}], "b": ("hunter22",)}
    cleaned = redactor.clean_json(MINE, value)
    assert cleaned == {"a": [f"x {MARK}", 1, None, {MARK: True}], "b": [MARK]}


def test_bytes_that_are_text_are_cleaned_others_stay():
    redactor = known("hunter22")
    assert redactor.clean_bytes(MINE, "ü hunter22".encode()) == f"ü {MARK}".encode()
    assert redactor.clean_bytes(MINE, b"\xff hunter22") == b"\xff hunter22"


def test_no_tenant_can_blot_out_words_of_another():
    redactor = known("ordinary word")
    assert redactor.clean(THEIRS, "an ordinary word") == "an ordinary word"
    assert redactor.clean_json(THEIRS, ["an ordinary word"]) == ["an ordinary word"]
    assert redactor.clean_all("an ordinary word") == f"an {MARK}"  # logs are everybody's


def test_without_a_known_value_nothing_is_looked_at():
    text, value, data = "a" * 100, {"a": ["b"]}, b"abc"
    redactor = known("hunter22")
    assert redactor.clean(THEIRS, text) is text
    assert redactor.clean_json(THEIRS, value) is value
    assert redactor.clean_bytes(THEIRS, data) is data
    assert Redactor().clean_all(text) is text


def test_short_values_are_left_alone():
    assert known("a" * (MIN_BYTES - 1)).clean(MINE, "aaaaaaaa") == "aaaaaaaa"


def test_the_least_lately_used_values_go_first():
    redactor = Redactor(max_values=2)
    for value in ("first-one", "second-one", "first-one", "third-one"):
        redactor.add(MINE, value)
    assert redactor.clean(MINE, "first-one second-one third-one") == f"{MARK} second-one {MARK}"
    redactor.add(THEIRS, "fourth-one")
    redactor.add(THEIRS, "fifth-one")
    assert redactor.clean(MINE, "first-one third-one") == "first-one third-one"


def test_a_tenant_with_huge_values_fills_no_process_and_pushes_nobody_out():
    redactor = known()
    redactor.add(THEIRS, "somebody else's")
    huge = [f"{n:04}" + "\u00e9" * 32_000 for n in range(30)]
    for value in huge:
        redactor.add(MINE, value)
    forms = [form for found in redactor._values.values() for form in found]
    assert sum(len(form) for form in forms) < 1.1 * MAX_TENANT_CHARS
    assert redactor.clean(MINE, huge[-1]) == MARK
    assert redactor.clean(THEIRS, "somebody else's") == MARK


@pytest.fixture
def process_redactor(monkeypatch):
    found = known('hunter"22')
    monkeypatch.setattr(redaction, "redactor", found)
    return found


@pytest.mark.usefixtures("process_redactor")
def test_a_log_line_is_clean_with_its_traceback():
    out = io.StringIO()
    log = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=[
            structlog.processors.format_exc_info, structlog.processors.JSONRenderer(), clean_line,
        ],
    )  # fmt: skip
    try:
        raise ValueError('it was hunter"22')
    except ValueError:
        log.exception("it failed", password='hunter"22', deep={"x": ['hunter"22']})
    line = out.getvalue()
    assert "hunter" not in line
    assert line.count(MARK) >= 3
    assert json.loads(line)["deep"] == {"x": [MARK]}


@pytest.mark.usefixtures("process_redactor")
def test_what_is_printed_is_clean():
    out = io.StringIO()
    stream = CleanStream(out)
    print('a hunter"22 b', file=stream, flush=True)
    stream.writelines(['hunter"22', "\n"])
    assert out.getvalue() == f"a {MARK} b\n{MARK}\n"
    assert stream.isatty() is False
