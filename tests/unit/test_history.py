"""Whatever became of a conversation, a model can be asked with it; nothing said is lost."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_common.core.history import BEGINNING, NO_RESULT, problems, repaired
from harness_common.core.message import Json, Message, Text, ToolResult, ToolUse, Trust, user

WHO = ("anthropic", "claude-x")
OURS = {"provider": "anthropic", "model": "claude-x", "layout": []}
THEIRS = {"provider": "openai", "items": []}


def ask(*ids: str, text: str = "", extra: object = None) -> Message:
    words = (Text(text),) if text else ()
    return Message("assistant", (*words, *(ToolUse(i, "look", {}) for i in ids)), extra=extra)


def results(*ids: str, trust: Trust = "trusted") -> Message:
    return Message("tool", tuple(ToolResult(i, f"result of {i}") for i in ids), trust)


def repair(*messages: Message) -> tuple[Message, ...]:
    out = repaired(messages, *WHO)
    assert_rules(out)
    assert repaired(out, *WHO) == out
    return out


def assert_rules(messages: Sequence[Message]) -> None:
    """Say the providers' rules once more, in other words than the module does."""
    ids: list[str] = []
    spoken = [m for m in messages if m.role != "system"]
    assert not spoken or spoken[0].role == "user"
    for number, message in enumerate(messages):
        uses = message.tool_uses()
        assert not uses or message.role == "assistant"
        ids += [u.id for u in uses]
        after = messages[number + 1] if number + 1 < len(messages) else None
        if uses:
            assert after is not None
            assert after.role == "tool"
            assert [b.tool_use_id for b in after.content] == [u.id for u in uses]  # type: ignore[union-attr]
        if message.role == "tool":
            assert number
            assert messages[number - 1].has_tool_uses()
            assert all(isinstance(b, ToolResult) for b in message.content)
        else:
            assert not any(isinstance(b, ToolResult) for b in message.content)
            assert message.content or message.extra
        assert all(b.text.strip() for b in message.content if isinstance(b, Text))
        assert message.extra is None or message.extra["provider"] == "anthropic"
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,40}", i, re.ASCII) for i in ids)


def test_a_conversation_that_is_well_stays_as_it_is():
    well = (
        user("hi"), ask("a", "b", text="I look.", extra=OURS), results("a", "b"), user("and?"),
        Message("assistant", (Text("done"),)),
    )  # fmt: skip
    assert all(new is old for new, old in zip(repair(*well), well, strict=True))
    assert repair() == ()
    assert not problems(well, *WHO)


def test_every_call_is_answered_once_and_in_the_order_asked():
    hurried = results("b", trust="untrusted")
    out = repair(user("hi"), ask("a", "b"), hurried, user("stop"), results("a"), user("go"))
    assert [m.role for m in out] == ["user", "assistant", "tool", "user", "user"]
    assert out[2] == Message("tool", results("a", "b").content, "untrusted")
    assert [m.text() for m in out[3:]] == ["stop", "go"]


def test_a_call_that_was_cancelled_is_answered():
    out = repair(user("hi"), ask("a"), user("never mind"))
    assert out[2].content == (ToolResult("a", NO_RESULT, True, "NO_RESULT"),)
    assert out[3].text() == "never mind"
    assert repair(user("hi"), ask("a"))[2].role == "tool"


def test_equal_ids_get_unique_ones_and_both_are_answered():
    """WIRE: providers repeat `call_0`, within an answer and between answers; some send none."""
    twins = Message("tool", (ToolResult("call_0", "first"), ToolResult("call_0", "second")))
    out = repair(
        user("hi"), ask("call_0", "call_0"), twins, ask("call_0", ""), results("call_0", "")
    )
    ids = [u.id for m in out for u in m.tool_uses()]
    assert ids == ["call_0", "call_2", "call_3", "call_4"]
    assert [b.content for b in out[2].content] == ["first", "second"]  # type: ignore[union-attr]
    assert [b.content for b in out[4].content] == ["result of call_0", "result of "]  # type: ignore[union-attr]


def test_an_id_that_another_provider_would_refuse_is_rewritten():
    long = "chatcmpl-tool-" + "f" * 32
    out = repair(user("hi"), ask(long, "a.b"), results(long, "a.b"))
    assert [u.id for u in out[1].tool_uses()] == ["call_1", "call_2"]
    assert [b.tool_use_id for b in out[2].content] == ["call_1", "call_2"]  # type: ignore[union-attr]


def test_a_result_without_call_becomes_words():
    lost = Message("tool", (ToolResult("x", "42"), ToolResult("y", "no", True, "TIMEOUT")))
    out = repair(user("hi"), lost, ask("a"), results("a", "a"))
    assert out[1].role == "user"
    assert out[1].text() == (
        "Result of an earlier tool call: 42Result of an earlier tool call: Error (TIMEOUT): no"
    )
    assert out[-1].text() == "Result of an earlier tool call: result of a"


def test_material_of_another_provider_or_model_is_dropped_whole():
    kept = ask("a", extra=OURS)
    others: list[Json] = [THEIRS, {**OURS, "model": "claude-y"}, {"layout": []}, "odd"]
    for extra in others:
        out = repair(user("hi"), ask("a", extra=extra), results("a"))
        assert out[1] == ask("a")
    assert repair(user("hi"), kept, results("a"))[1] is kept
    assert repaired((user("hi"), kept, results("a")), "openai", "gpt")[1].extra is None


def test_material_is_dropped_when_its_message_had_to_change():
    """Signatures and items name what they belong to: half a message is worse than none."""
    out = repair(user("hi"), ask("a", "a", extra=OURS), results("a", "a"))
    assert out[1].extra is None


def test_an_answer_that_was_only_reasoning_stays_where_it_fits_and_goes_elsewhere():
    thought = Message("assistant", (), extra=OURS)
    assert repair(user("hi"), thought) == (user("hi"), thought)
    assert repaired((user("hi"), thought), "openai", "gpt") == (user("hi"),)


def test_the_user_begins_and_nobody_says_nothing():
    out = repair(Message("system", (Text("be good"),)), Message("assistant", (Text("hello"),)))
    assert [m.text() for m in out] == ["be good", BEGINNING, "hello"]
    assert repair(user("hi"), user("  "), Message("assistant", ()), user("")) == (user("hi"),)


TEXTS = st.sampled_from(["", " ", "hello", "again", "x\ny"])
IDS = st.sampled_from(["", "call_0", "call_1", "call_2", "a", "a b", "z" * 41])
BLOCKS = st.one_of(
    st.builds(Text, TEXTS),
    st.builds(ToolUse, IDS, st.sampled_from(["look", "write"]), st.just({"q": "asked"})),
    st.builds(
        ToolResult, IDS, st.sampled_from(["", "found", "none"]), st.booleans(), st.just("TIMEOUT")
    ),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "assistant", "tool", "tool"]),
    st.lists(BLOCKS, max_size=4).map(tuple),
    st.sampled_from(["trusted", "untrusted"]),
    st.sampled_from([None, None, OURS, THEIRS]),
)
HISTORIES = st.lists(MESSAGES, max_size=8)


def said(messages: Sequence[Message]) -> list[str]:
    """List every text of a conversation, whatever it has become."""
    words = []
    for block in (b for m in messages for b in m.content):
        match block:
            case Text(text):
                words.append(text)
            case ToolResult(_, content):
                words.append(content)
            case ToolUse(_, _, arguments):
                words.append(str(arguments))
    return [w for w in words if w.strip()]


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_any_history_is_repaired_once_and_loses_no_words(history):
    out = repair(*history)
    assert not problems(out, *WHO)
    everything = "\n".join(said(out))
    for words in set(said(history)):
        before = sum(w.count(words) for w in said(history))
        assert everything.count(words) >= before


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_what_is_well_needs_no_repair(history):
    """The check misses nothing that the rules of the providers forbid."""
    if not problems(history, *WHO):
        assert_rules(history)


@settings(max_examples=80, deadline=None)
@given(HISTORIES, HISTORIES)
def test_a_conversation_that_grows_is_repaired_to_one_that_grows(history, more):
    """Prompt caches and signatures rest on the beginning staying what it was."""
    before = repair(*history)
    if any(m.role == "assistant" for m in more[:1]):
        assert repair(*history, *more)[: len(before)] == before


@settings(max_examples=60, deadline=None)
@given(HISTORIES)
def test_what_nobody_trusts_stays_untrusted(history):
    bad = {t for m in history if m.trust == "untrusted" for t in said([m])}
    good = {t for m in history if m.trust == "trusted" for t in said([m])}
    for message in repair(*history):
        if message.trust == "trusted" and message.text() != BEGINNING:
            assert not any(t in (bad - good) for t in said([message]))
