"""Differences of texts: what they say, and that nobody's text makes them take long."""

from __future__ import annotations

import random
import re
import time

import pytest

from harness_api.text_diff import MOST_LINES, diff_lines


def patched(before: list[str], lines: list[str]) -> list[str]:
    """Make of a text what its difference says."""
    out, at = [], 0
    for line in lines:
        if found := re.fullmatch(r"@@ -(\d+)(,\d+)? \+\d+(,\d+)? @@", line):
            begin = int(found[1]) - (found[2] != ",0")
            out += before[at:begin]
            at = begin
            continue
        if line[0] in " -":
            assert before[at] == line[1:]
            at += 1
        if line[0] in " +":
            out.append(line[1:])
    return out + before[at:]


def test_the_lines():
    before = ["a", "b", "c", "d", "e", "f"]
    after = ["a", "b", "c", "D", "e", "f"]
    assert diff_lines(before, after, 1) == ["@@ -3,3 +3,3 @@", " c", "-d", "+D", " e"]
    assert diff_lines([], ["x"], 2) == ["@@ -0,0 +1 @@", "+x"]
    assert diff_lines(before, before, 2) == []


@pytest.mark.parametrize("seed", range(200))
def test_it_leads_from_one_text_to_the_other(seed):
    chance = random.Random(seed)
    before, after = ([chance.choice("abc") for _ in range(chance.randrange(25))] for _ in range(2))
    assert patched(before, diff_lines(before, after, chance.randrange(4))) == after


def test_long_texts_are_compared_as_a_whole_between_their_ends():
    """They would take minutes: each line is found in dozens of places."""
    chance = random.Random(1)
    before, after = (
        ["first", *(str(chance.randrange(120)) for _ in range(10_000)), "last"] for _ in range(2)
    )
    begun = time.monotonic()
    lines = diff_lines(before, after, 2)
    assert time.monotonic() - begun < 1
    assert patched(before, lines) == after
    assert (lines[1], lines[-1]) == (" first", " last")


def test_one_change_in_a_long_text_is_found():
    before = [str(n) for n in range(20 * MOST_LINES)]
    after = [*before[:5_000], "new", *before[5_001:]]
    assert diff_lines(before, after, 0) == ["@@ -5001 +5001 @@", "-5000", "+new"]
