"""Traces in one process: off they make nothing; on they are bounded, clean and never wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import Semaphore
from uuid import UUID, uuid4

import pytest

from harness_common.core.errors import Transient
from harness_common.redaction import redactor
from harness_common.settings import TelemetrySettings
from harness_common.telemetry.causes import CAUSE, Cause, causing, note_made, tell
from harness_common.telemetry.export import Answer, SpanQueue
from harness_common.telemetry.labels import Bounded
from harness_common.telemetry.start import start_traces
from harness_common.telemetry.traces import (
    Place,
    Span,
    accept_span,
    attempt_span,
    place_in,
    run_span,
    trace_of,
    traces,
)

RUN = UUID("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0001")


def uuid7(random: Random) -> UUID:
    """Make a UUIDv7 as Postgres does: the time, and 74 random bits."""
    value = (1_764_500_000_000 << 80) | (7 << 76) | (random.getrandbits(12) << 64)
    return UUID(int=value | (2 << 62) | random.getrandbits(62))


class Kept:
    """What would go to a collector."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.counted: dict[str, int] = {}

    def send(self, spans: Sequence[Span]) -> Answer:
        self.spans += spans
        return "sent"

    def count(self, outcome: str, n: int) -> None:
        self.counted[outcome] = self.counted.get(outcome, 0) + n


@contextmanager
def tracing(ratio: float = 1.0, content: bool = False) -> Iterator[Kept]:
    kept = Kept()
    traces.begin(SpanQueue(kept.send, count=kept.count), ratio=ratio, content=content)
    try:
        yield kept
    finally:
        traces.stop()


def test_without_a_collector_nothing_begins():
    start_traces(TelemetrySettings(), "harness-test", "1")
    assert not traces.on
    assert traces.start("x", Place(1, 1)) is None
    with traces.inside(None):
        assert traces.current is None


def test_ids_are_derived_and_differ():
    assert trace_of(RUN, "") == RUN.int
    assert trace_of(RUN, "ab" * 16) == int("ab" * 16, 16)
    assert trace_of(RUN, "0" * 32) == RUN.int  # no trace has this id
    ids = {run_span(RUN), accept_span(RUN), *(attempt_span(RUN, n) for n in range(1, 100))}
    assert len(ids) == 101
    assert 0 not in ids
    assert attempt_span(RUN, 1) == attempt_span(UUID(RUN.hex), 1)


def test_all_processes_keep_the_same_part_of_the_traces_of_uuids():
    """The upper bits of the lower half of a UUID are fixed: a ratio must not go by them."""
    random = Random(7)
    ids = [uuid7(random) for _ in range(4_000)]
    with tracing(ratio=0.25):
        taken = sum(traces.takes(one.int) for one in ids)
    assert 880 < taken < 1_120
    with tracing(ratio=0.0):
        assert not any(traces.takes(one.int) for one in ids)
    with tracing(ratio=1.0):
        assert all(traces.takes(one.int) for one in ids)


def test_a_span_knows_its_parent_its_time_and_a_code_but_no_words():
    with tracing() as kept:
        outer = traces.start("outer", Place(5, 6))
        with traces.inside(outer):
            inner = traces.start("inner", traces.current)
            assert inner is not None
            inner.begun_s -= 0.5
            with pytest.raises(Transient), traces.inside(inner):
                raise Transient("the words of a provider", code="MODEL_UNAVAILABLE")
    assert outer is not None
    (first, second) = kept.spans
    assert (first.name, second.name) == ("inner", "outer")
    assert first.place.trace_id == second.place.trace_id == 5
    assert (first.parent_id, second.parent_id) == (second.place.span_id, 6)
    assert 0.5e9 <= first.end_ns - first.start_ns < 5e9
    assert first.error == "MODEL_UNAVAILABLE"
    assert second.error is None
    assert "words" not in repr(kept.spans)
    assert kept.counted == {"sent": 2}


def test_known_secrets_never_stand_in_a_span():
    secret = "s3cr3t-canary-4711"
    redactor.add(uuid4(), secret)
    with tracing() as kept:
        span = traces.start(f"chat {secret}", Place(1, 2), attributes={"a": f"x {secret}"})
        assert span is not None
        span.set("list", (secret, "b"))
        span.put(more=secret)
        span.fail(f"CODE {secret}")
        traces.end(span)
    assert len(kept.spans) == 1
    assert secret not in repr(kept.spans)
    assert "[redacted]" in repr(kept.spans)


def test_a_full_queue_drops_and_counts_and_nobody_waits():
    gate, kept = threading.Event(), Kept()

    def stuck(spans: Sequence[Span]) -> Answer:
        gate.wait(20)
        return kept.send(spans)

    queue = SpanQueue(stuck, most=600, every_s=0.01, count=kept.count)
    traces.begin(queue)
    try:
        begun = time.monotonic()
        for _ in range(2_000):
            span = traces.start("x", Place(1, 2))
            assert span is not None
            traces.end(span)
        assert time.monotonic() - begun < 2.0
        assert 800 <= kept.counted["dropped"] == queue.lost <= 1_400
    finally:
        gate.set()
        traces.stop(10.0)
    assert kept.counted["sent"] + kept.counted["dropped"] == 2_000


def end_some(n: int) -> None:
    for _ in range(n):
        span = traces.start("x", Place(1, 2))
        assert span is not None
        traces.end(span)


def test_spans_wait_for_a_collector_that_is_away_and_arrive_when_it_is_back():
    kept, tries, back = Kept(), Semaphore(0), threading.Event()

    def away(spans: Sequence[Span]) -> Answer:
        tries.release()
        return kept.send(spans) if back.is_set() else "later"

    traces.begin(SpanQueue(away, every_s=0.01, count=kept.count))
    end_some(3)
    assert tries.acquire(timeout=10)
    assert tries.acquire(timeout=10)  # the same spans once more
    back.set()
    traces.stop(10.0)
    assert kept.counted == {"sent": 3}
    assert len(kept.spans) == 3


def test_what_a_collector_refuses_or_cannot_be_written_is_counted_and_over():
    for bad in ("refused", OSError("no")):
        kept = Kept()

        def refuse(spans: Sequence[Span], bad: object = bad) -> Answer:
            if isinstance(bad, Exception):
                raise bad
            return "refused"

        queue = SpanQueue(refuse, every_s=0.01, count=kept.count)
        traces.begin(queue)
        end_some(1)
        traces.stop(10.0)
        assert kept.counted == {"refused": 1}
        assert queue.lost == 1


def test_stopping_does_not_wait_for_a_collector_that_hangs():
    gate, hung_up = threading.Event(), threading.Event()

    def hang(spans: Sequence[Span]) -> Answer:
        gate.wait(20)
        return "later"

    traces.begin(SpanQueue(hang, every_s=0.01, hang_up=hung_up.set))
    span = traces.start("x", Place(1, 2))
    assert span is not None
    traces.end(span)
    begun = time.monotonic()
    traces.stop(0.3)
    assert time.monotonic() - begun < 2.0
    assert hung_up.is_set()
    gate.set()


def test_what_makes_a_run_is_the_first_span_of_its_trace():
    source, made = uuid4(), uuid4()
    with tracing() as kept:
        with causing("fire schedule", {}):
            note_made(made, "", source, "cd" * 16)
        with causing("fire schedule", {}):
            pass  # nothing was made: nothing to tell
    (span,) = kept.spans
    assert span.place == Place(made.int, accept_span(made))
    assert span.parent_id == 0
    (link,) = span.links
    assert (link.place, link.how) == (Place(int("cd" * 16, 16), run_span(source)), "forked_from")


def test_a_request_belongs_to_the_trace_of_its_caller():
    parent = place_in(f"00-{'ab' * 16}-{'cd' * 8}-01")
    assert parent is not None
    with tracing() as kept:
        cause = Cause(traces.clock(), parent)
        token = CAUSE.set(cause)
        note_made(RUN, "ab" * 16)
        CAUSE.reset(token)
        tell(cause, "POST /v1/runs", "server", {}, made=True)
        tell(cause, "POST /v1/runs", "server", {}, made=False)  # it failed after all
        tell(Cause(traces.clock()), "GET /v1/runs", "server", {}, made=False)
    first, failed, other = kept.spans
    assert first.place == Place(parent.trace_id, accept_span(RUN))
    assert first.parent_id == failed.parent_id == parent.span_id
    assert failed.place.span_id != accept_span(RUN)
    assert other.parent_id == 0
    assert other.place.trace_id not in {0, parent.trace_id}


@pytest.mark.parametrize(
    "text", ["", "00-xyz", f"00-{'0' * 32}-{'cd' * 8}-01", f"00-{'ab' * 16}-{'0' * 16}-01"]
)
def test_a_broken_traceparent_is_none(text):
    assert place_in(text) is None


def test_labels_are_bounded():
    label = Bounded(3, ["known"])
    assert [label(v) for v in ("known", "a", "b", "c", "a", "known")] == [
        "known", "a", "b", "other", "a", "known",
    ]  # fmt: skip
    assert Bounded(9)("a text of a model") == "other"
    assert Bounded(9)("run_0199" + "a" * 60) == "other"
