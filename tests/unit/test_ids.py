"""External ids: prefixed, strict, and reversible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.core.errors import Invalid
from harness_common.core.ids import PREFIXES, decode, encode


@given(st.sampled_from(sorted(PREFIXES)), st.uuids())
def test_round_trip(kind, value):
    assert decode(kind, encode(kind, value)) == value


def test_prefixes_tell_kinds_apart():
    assert len(set(PREFIXES.values())) == len(PREFIXES)
    assert not any(a != b and a.startswith(b) for a in PREFIXES.values() for b in PREFIXES.values())


def test_upper_case_digits_are_digits():
    assert decode("run", "run_" + HEX.upper()) == decode("run", "run_" + HEX)


HEX = "0199" + "a" * 28


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run_",
        HEX,
        "sess_" + HEX,
        "run_" + HEX[:-1],
        "run_" + HEX + "0",
        "run_" + "g" * 32,
        "run_run_" + HEX[4:],
        "run_" + "-" * 32,
        "run_{" + "a" * 30 + "}",
        "run_" + "a_" * 16,
        "run_+" + "a" * 31,
        "run_ " + "a" * 31,
        "run_0x" + "a" * 30,
        "run_" + "a" * 31 + "\n",
        "run_" + "٣" * 32,
        "run_urn:uuid:" + "a" * 23,
        "RUN_" + HEX,
        "x" * 10_000,
    ],
)
def test_anything_else_is_refused_with_the_expected_form(text):
    with pytest.raises(Invalid) as caught:
        decode("run", text)
    assert caught.value.detail["field"] == "run_id"
    assert "expected run_ and 32 hex digits" in caught.value.message
    assert len(caught.value.message) < 400
