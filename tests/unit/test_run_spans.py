"""The spans of a run and its attempts: named alike by whoever sends them, worker or scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from harness_common.core.errors import LostOwnership
from harness_common.core.inputs import StepFailed
from harness_common.core.run import RunState, Status
from harness_common.core.step import Failure
from harness_common.core.values import replace
from harness_common.store.rows import StoredRun
from harness_common.store.spans import send_lost, send_queued, send_run, tries
from harness_common.telemetry.ids import ABOUT
from harness_common.telemetry.traces import Place, Span, accept_span, attempt_span, run_span
from harness_worker.telemetry.steps import Attempt
from tests.unit.test_traces import RUN, tracing

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
OTHER = UUID("0199aaaa-bbbb-7ccc-8ddd-eeeeffff0002")


def run_of(fence: int = 3, **more: Any) -> StoredRun:
    of_state = {k: more.pop(k) for k in list(more) if k in RunState.__dataclass_fields__}
    return StoredRun(
        tenant_id=UUID(int=1), id=RUN, session_id=UUID(int=2), agent_id=UUID(int=3),
        agent_name="walker", agent_version=1, queue="steps.default", priority=6, trace_id="",
        prev_run_id=None, attempt=1, fence=fence, claim_id=UUID(int=fence), claimed_by=UUID(int=9),
        committed_by=None, last_input_n=0, rings=1, state=RunState(**of_state),
    ) if not more else replace(run_of(fence, **of_state), **more)  # fmt: skip


def only(spans: list[Span]) -> Span:
    (span,) = spans
    return span


def test_the_scheduler_names_a_lost_attempt_as_its_worker_would_have():
    run = run_of()
    with tracing() as kept:
        with Attempt(run):
            pass
        send_lost(run, NOW - timedelta(seconds=2), NOW, "killed")
    own, lost = kept.spans
    assert own.place == lost.place == Place(RUN.int, attempt_span(RUN, 3))
    assert own.parent_id == lost.parent_id == run_span(RUN)
    assert (own.error, lost.error) == (None, "OWNER_LOST")
    assert lost.end_ns - lost.start_ns == 2_000_000_000
    assert lost.attributes["harness.claim_id"] == str(run.claim_id)


def test_an_attempt_that_lost_its_run_leaves_the_id_to_the_scheduler():
    with tracing() as kept, pytest.raises(LostOwnership), Attempt(run_of()):
        raise LostOwnership("another claim owns the run")
    span = only(kept.spans)
    assert span.place.span_id != attempt_span(RUN, 3)
    assert span.place.trace_id == RUN.int
    assert (span.error, span.attributes["harness.lost"]) == ("LOST_OWNERSHIP", True)


@pytest.mark.parametrize(
    ("more", "is_retry"),
    [({}, False), ({"failures": 1}, True), ({"deaths": 1}, True), ({"attempt": 2}, True),
     ({"limited": 1}, True)],
)  # fmt: skip
def test_a_retry_says_so_and_links_to_the_claim_before(more, is_retry):
    with tracing() as kept, Attempt(run_of(**more), "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
        pass
    span = only(kept.spans)
    links = {link.how: link.place for link in span.links}
    assert links["doorbell"] == Place(int("ab" * 16, 16), int("cd" * 8, 16))
    assert ("previous_attempt" in links) is is_retry
    assert ("harness.previous_fence" in span.attributes) is is_retry
    if is_retry:
        assert links["previous_attempt"] == Place(RUN.int, attempt_span(RUN, 2))


def test_a_failed_attempt_has_the_code_and_not_the_words():
    failure = Failure("transient", "MODEL_UNAVAILABLE", "the words of a provider")
    with tracing() as kept, Attempt(run_of()) as seen:
        seen.ran(StepFailed(failure, NOW))
    span = only(kept.spans)
    assert (span.error, span.attributes["harness.outcome"]) == ("MODEL_UNAVAILABLE", "transient")
    assert "words" not in repr(span)


def test_the_span_of_a_run_goes_from_its_id_to_its_end():
    state = RunState(status=Status.FAILED, error={"code": "BAD", "message": "words"}, step=4)
    run = run_of()
    with tracing() as kept:
        send_run(run, state, NOW)
        send_run(replace(run, parent_run_id=OTHER, trace_id="ab" * 16), state, NOW)
        send_queued(run, NOW - timedelta(seconds=5), NOW)
    whole, child, queued = kept.spans
    assert whole.place == Place(RUN.int, run_span(RUN))
    assert whole.parent_id == accept_span(RUN)
    assert whole.start_ns == (RUN.int >> 80) * 1_000_000
    assert whole.error == "BAD"
    assert "words" not in repr(whole)
    assert child.place == Place(int("ab" * 16, 16), run_span(RUN))
    assert child.parent_id == run_span(OTHER)
    assert [link.how for link in child.links] == ["parent"]
    assert queued.end_ns - queued.start_ns == 5_000_000_000


def test_log_lines_know_what_is_worked_on_while_it_is():
    run = run_of(failures=2)
    with Attempt(run):
        about = ABOUT.get()
        assert about is not None
        assert (about.run_id, about.step, about.attempt, about.fence) == (RUN, 1, 3, 3)
    assert ABOUT.get() is None
    assert tries(run) == 3
