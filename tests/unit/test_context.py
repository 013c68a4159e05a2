"""A conversation that a provider accepts: every tool use is answered right after it was asked."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from harness_common.core.context import closed_past
from harness_common.core.context_view import Shown
from harness_common.core.message import Message, Text, ToolResult, ToolUse, user

ASK = Message("assistant", (Text("look"), ToolUse("a", "f", {}), ToolUse("b", "g", {})))
BOTH = Message("tool", (ToolResult("a", "1"), ToolResult("b", "2")))


def closed(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(one.message for one in closed_past([Shown(m) for m in messages]))


def answers(message: Message) -> list[str]:
    return [b.tool_use_id for b in message.content if isinstance(b, ToolResult)]


def test_a_whole_conversation_is_left_alone():
    whole = (user("hi"), ASK, BOTH, Message("assistant", (Text("done"),)))
    assert closed(whole) == whole
    assert closed(()) == ()


def test_orphans_are_answered_where_they_were_asked():
    out = closed((user("hi"), ASK, user("next"), ASK))
    assert [m.role for m in out] == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert answers(out[2]) == ["a", "b"]
    results = [b for b in out[2].content if isinstance(b, ToolResult)]
    assert [(b.is_error, b.error_type) for b in results] == [(True, "CANCELLED")] * 2


def test_an_id_that_an_earlier_answer_used_too_is_still_an_orphan():
    out = closed((ASK, BOTH, ASK))
    assert [m.role for m in out] == ["assistant", "tool", "assistant", "tool"]


def test_what_is_half_answered_is_completed_in_the_same_message():
    out = closed((ASK, Message("tool", (ToolResult("a", "1"),), "untrusted"), user("next")))
    assert [m.role for m in out] == ["assistant", "tool", "user"]
    assert answers(out[1]) == ["a", "b"]
    assert out[1].trust == "untrusted"


asks = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(
    lambda ids: Message("assistant", tuple(ToolUse(i, "f", {}) for i in ids))
)
results = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(
    lambda ids: Message("tool", tuple(ToolResult(i, "r") for i in ids))
)


@given(st.lists(asks | st.just(user("x")) | st.tuples(asks, results), max_size=6))
def test_every_use_has_an_answer_in_the_next_message_and_a_second_pass_changes_nothing(parts):
    said: list[Message] = []
    for part in parts:
        said += part if isinstance(part, tuple) else (part,)
    out = closed(said)
    for i, message in enumerate(out):
        asked = {u.id for u in message.tool_uses()}
        if asked:
            assert asked <= set(answers(out[i + 1]))
    assert closed(out) == out
