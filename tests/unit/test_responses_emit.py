"""Numbers of a response's events: the same from the record as live, and exact within a text."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_api.responses.emit import STRIDE, Emitter
from harness_api.responses.ids import Ref, read_call, read_model, read_ref
from harness_api.responses.items import read_input
from harness_api.responses.walk import Answered, Failed
from harness_common.core.message import Message, Text, ToolUse

REF = Ref(UUID(int=7))


def answered(step: int, text: str, *uses: str, restarts: int = 0) -> Answered:
    calls = (ToolUse(f"c{i}", name, {"a": 1}) for i, name in enumerate(uses))
    return Answered(step, Message("assistant", (Text(text), *calls)), 1, 1, restarts)


def texts(events) -> str:
    return "".join(e.body["delta"] for e in events if e.type == "response.output_text.delta")


@given(
    text=st.text(min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    upto=st.integers(0, 20),
    seen=st.integers(0, 40),
)
@settings(deadline=None)
def test_a_client_that_was_cut_off_reads_the_rest_exactly(text, cuts, upto, seen):
    """Live text of any pieces, cut anywhere, and the rest read from the record."""
    live = Emitter(REF, frozenset())
    points = sorted({0, *(c for c in cuts if c < len(text)), min(upto, len(text))})
    events: list[Any] = []
    for a, b in itertools.pairwise(points):
        events += live.live(1, a, text[a:b])
    events += live.take(answered(1, text))
    recorded = list(Emitter(REF, frozenset()).take(answered(1, text)))
    assert events[-1].seq == recorded[-1].seq
    assert texts(events) == texts(recorded) == text
    first = [e for e in events if e.seq <= seen]
    last_seen = max((e.seq for e in first), default=-1)
    rest = [r for e in recorded if (r := e.after(last_seen)) is not None]
    assert texts(first) + texts(rest) == text
    others = [e.seq for e in recorded if e.type != "response.output_text.delta"]
    told = [e.seq for e in [*first, *rest] if e.type != "response.output_text.delta"]
    assert told == others, "no event twice, none missing"


def test_text_that_comes_twice_or_with_a_gap():
    emitter = Emitter(REF, frozenset())
    events = list(emitter.live(1, 2, "cd"))
    assert events == [], "its beginning was missed"
    events += emitter.live(1, 0, "ab")
    events += emitter.live(1, 1, "bc")
    events += emitter.live(1, 5, "f")
    assert texts(events) == "abc"
    events += emitter.take(answered(1, "abcdef"))
    assert texts(events) == "abcdef"
    assert list(emitter.live(1, 0, "ab")) == [], "the step has answered"


def test_a_failed_attempt_takes_a_stride_whatever_was_shown_of_it():
    shown, unseen = Emitter(REF, frozenset()), Emitter(REF, frozenset())
    ghost = [*shown.live(1, 0, "wrong"), *shown.take(Failed(1))]
    assert ghost[-1].body["item"]["status"] == "incomplete"
    assert ghost[-1].seq < STRIDE
    list(unseen.take(Failed(1)))
    a, b = (list(e.take(answered(1, "right"))) for e in (shown, unseen))
    assert [e.seq for e in a] == [e.seq for e in b]
    assert a[0].seq == STRIDE
    assert shown.output == unseen.output
    assert a[0].body["output_index"] == 1, "the items of one stream have places of their own"


def test_the_text_of_a_model_that_answers_for_another_is_not_mixed_with_its_text():
    """Live and from the record alike, whatever was seen of the first."""
    live, late, record = (Emitter(REF, frozenset()) for _ in range(3))
    seen = [*live.live(1, 0, "Hel"), *live.live(1, 0, "Good ", 1), *live.live(1, 3, "lo")]
    assert texts(seen) == "HelGood "
    list(late.live(1, 5, "day", 1))
    said = answered(1, "Good day", restarts=1)
    seen += live.take(said)
    rests = [list(one.take(said)) for one in (late, record)]
    assert rests[0] == rests[1]
    assert seen[-1].seq == rests[1][-1].seq > STRIDE
    assert [e.seq for e in seen] == sorted({e.seq for e in seen})
    assert live.output == record.output
    assert [i["content"][0]["text"] for i in live.output] == ["Good day"]
    items = [e.body["output_index"] for e in seen if e.type == "response.output_item.done"]
    assert items == [0, 1], "the text that is no answer has a place of its own"
    cut = next(e.seq for e in seen if e.body.get("delta") == "Good ")
    rest = [r for e in rests[1] if (r := e.after(cut)) is not None]
    assert texts(rest) == "day", "who was cut off reads the rest exactly"


def test_an_attempt_in_which_several_models_failed_takes_a_stride_for_each():
    live, record = Emitter(REF, frozenset()), Emitter(REF, frozenset())
    seen = [*live.live(1, 0, "Hel"), *live.live(1, 0, "Good", 1)]
    for one in (live, record):
        seen += one.take(Failed(1, restarts=1, input_tokens=4))
    a, b = (list(e.take(answered(1, "right"))) for e in (live, record))
    assert [e.seq for e in a] == [e.seq for e in b]
    assert a[0].seq == 2 * STRIDE
    assert (record.input_tokens, record.output_tokens) == (5, 1)


def test_live_text_that_the_record_does_not_have_is_closed():
    emitter = Emitter(REF, frozenset())
    events = [*emitter.live(1, 0, "xy"), *emitter.take(answered(1, "abc"))]
    assert [i["content"][0]["text"] for i in emitter.output] == ["abc"]
    assert [e.seq for e in events] == sorted({e.seq for e in events})


def test_calls_of_the_client_and_ids():
    emitter = Emitter(REF, frozenset({"add"}))
    list(emitter.take(answered(3, "", "look", "add")))
    (item,) = emitter.output
    ref = read_call(item["call_id"])
    assert ref is not None
    assert (ref.run_id, ref.step, ref.index) == (REF.run_id, 4, 1)
    assert read_ref(str(Ref(REF.run_id, 9))) == Ref(REF.run_id, 9)
    assert read_model("agent:a.b@2") == ("a.b", 2)
    assert read_model("a") == ("a", None)
    assert read_call("call_1") is None


def test_many_items_are_joined_in_linear_time():
    """As many as a body may hold: one after the other they stopped the API for twenty seconds."""
    item = {"type": "function_call_output", "call_id": "call_x", "output": ""}
    begun = time.monotonic()
    said = read_input([*([item] * 36_000), {"role": "user", "content": "go on"}])
    assert time.monotonic() - begun < 5
    assert [m.role for m in said.messages] == ["tool", "user"]
    assert len(said.messages[0].content) == 36_000


def test_what_was_taken_back_is_no_part_of_the_response():
    emitter = Emitter(REF, frozenset())
    events = list(emitter.take(answered(1, "Look:", "calculate")))
    events += emitter.take(replace(answered(2, "sure"), counts=False))
    events += emitter.take(answered(3, '{ "a": 1 }'))
    events += emitter.output_text('{"a":1}')
    texts_ = [i["content"][0]["text"] for i in emitter.output]
    assert texts_ == ["Look:", '{"a":1}'], "words beside a call are no answer that was taken back"
    begun = [e.body["output_index"] for e in events if e.type == "response.output_item.added"]
    assert begun == [0, 1, 2, 3]
    assert [e.seq for e in events] == sorted({e.seq for e in events})


def test_what_a_node_of_a_graph_says_takes_a_stride_unless_it_is_what_the_graph_gives():
    for said, stride in (("", STRIDE), ("as the node says it", 0)):
        shown, unseen = Emitter(REF, frozenset()), Emitter(REF, frozenset())
        list(shown.live(1, 0, "as the node"))
        fact = replace(answered(1, said), node="as the node says it")
        for emitter in (shown, unseen):
            list(emitter.take(fact))
            list(emitter.take(answered(2, "next")))
        assert shown.next == unseen.next
        assert (shown.next > STRIDE) == bool(stride)
        assert shown.output == unseen.output
