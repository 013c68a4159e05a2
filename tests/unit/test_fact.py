"""What a fact may rest on: words that somebody said, and not those of the model or the platform."""

from __future__ import annotations

from harness_common.core.context_prompt import Section, assemble
from harness_common.core.context_summary import summary_message
from harness_common.core.fact import Source, source_of
from harness_common.core.hints import hint
from harness_common.core.message import Message, Text, ToolResult, user

CLAIM = "the customer prefers tea"


def test_users_and_tools_are_sources_and_the_model_is_none():
    tool = Message("tool", (ToolResult("c", CLAIM),), "untrusted")
    assert source_of(CLAIM, [Message("assistant", (Text(CLAIM),))]) is None
    assert source_of(CLAIM, [tool]) == Source("tool", "untrusted", 1)
    assert source_of(CLAIM, [tool, user(CLAIM)]) == Source("user", "trusted", 2)


def test_what_the_platform_repeats_of_the_models_words_is_no_source():
    said = hint(f"Your answer cannot be used.\nYou answered:\n{CLAIM}")
    assert source_of(CLAIM, [said]) is None
    section = Section("Plan", CLAIM, volatile=True)
    (note,) = assemble(system="", recent=[], state=[section]).render(1_000).notes
    assert source_of(CLAIM, [note]) is None


def test_a_summary_is_a_source_for_what_it_quotes_alone():
    about = {"covers": 4, "results": 0, "turns": 2, "answers": 2}
    quotes = ["I like green tea a lot.\n\nAnd cake.", "Nothing else."]
    summary = summary_message(f"Done:\n- {CLAIM}", quotes, "trusted", about)
    assert source_of(CLAIM, [summary]) is None
    for quote in ("I like green tea a lot", "And cake.", "Nothing else."):
        assert source_of(quote, [summary]) == Source("user", "trusted", 1)
