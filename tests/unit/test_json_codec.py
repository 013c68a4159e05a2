"""The database's JSON: no NUL, nothing else changed, and nothing that a model can say makes it
fail.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness_common.store.json_codec import dumps, dumps_text, loads

words = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from(["\x00", "\\", "u", "0", '"']),
    max_size=16,
)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("\x00", ""),
        ("a\x00b", "ab"),
        ("\x00\x00\x00", ""),
        ("\\u0000", "\\u0000"),
        ("\\\x00", "\\"),
        ("\\\\\x00\\u0000\x00", "\\\\\\u0000"),
        ("\\\\u0000", "\\\\u0000"),
        ("\x00u0000", "u0000"),
        ("\\\x00u0000", "\\u0000"),
        ('"\x00"', '""'),
        ("u0000", "u0000"),
    ],
)
def test_nul_is_dropped_and_what_only_looks_like_it_is_kept(value, kept):
    assert loads(dumps(value)) == kept
    assert loads(dumps({"k": [value]})) == {"k": [kept]}


@given(words)
@example("\\" * 5 + "\x00")
@example("\x00\\u0000")
def test_only_nul_is_dropped(text):
    assert loads(dumps(text)) == text.replace("\x00", "")
    assert json.loads(dumps_text([text])) == [text.replace("\x00", "")]


@given(words)
def test_json_inside_json_keeps_its_text(text):
    """A message body travels as JSON text inside JSON: the stored bytes are the ones that were
    written.
    """
    inner = json.dumps({"t": text}, ensure_ascii=False)
    assert loads(dumps(inner)) == inner


def test_keys_are_cleaned_too():
    assert loads(dumps({"a\x00": 1})) == {"a": 1}


def test_what_postgres_reads():
    value = {"at": datetime(2025, 1, 2, tzinfo=UTC), "id": UUID(int=1)}
    assert loads(dumps(value)) == {
        "at": "2025-01-02T00:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
    }
    assert dumps(float("nan")) == b"null"


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**40])
def test_long_integers_stay_exact(value):
    """`models.tool_args` promises it for arguments; `store.apply` writes those with this codec."""
    assert json.loads(dumps({"n": value})) == {"n": value}


def test_an_unpaired_surrogate_does_not_stop_a_commit():
    """No writer of text can promise that there is none; a commit that raises leaves the run to its
    lease.
    """
    assert loads(dumps({"t": "a\ud800b"}))["t"].startswith("a")
