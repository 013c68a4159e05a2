"""What is seen of one attempt at a step: its span, its times, the ids in its log lines."""

from __future__ import annotations

import time
from contextvars import Token
from datetime import datetime
from types import TracebackType
from typing import Final

from harness_common.core.inputs import Input, Released, StepDone, StepFailed
from harness_common.core.step import StepCancelled
from harness_common.store.rows import StoredRun
from harness_common.store.spans import begin_attempt, tries
from harness_common.telemetry.ids import ABOUT, About
from harness_common.telemetry.traces import Link, Span, code_of, place_in, traces
from harness_worker.telemetry import metrics

_OUTCOMES: Final = {Released: "released", StepFailed: "failed", StepDone: "done"}


class Attempt:
    """Watches one attempt from the claim to the commit. Use it with `with`."""

    __slots__ = ("_begun_s", "_kind", "_run", "_scope", "_span", "_token", "outcome")

    def __init__(self, run: StoredRun, traceparent: str = "") -> None:
        """`traceparent` is that of the doorbell that led to it."""
        self._run = run
        self._kind = metrics.kinds(run.state.next_kind)
        self._begun_s = 0.0
        self._span: Span | None = None
        self._scope = traces.inside(None)
        self._token: Token[About | None] | None = None
        self.outcome = "lost"
        if traces.on:
            self._span = begin_attempt(run)
            self._scope = traces.inside(self._span)
            if self._span is not None and (rung := place_in(traceparent)) is not None:
                self._span.links.append(Link(rung, "doorbell"))

    def __enter__(self) -> Attempt:
        run = self._run
        self._token = ABOUT.set(
            About(
                run.tenant_id, run.session_id, run.id, run.state.step + 1, tries(run),
                run.fence, run.trace_id,
            )
        )  # fmt: skip
        self._scope.__enter__()
        self._begun_s = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        metrics.count(metrics.steps, self._kind, self.outcome).inc()
        if self._span is not None:
            self._span.put(outcome=self.outcome)
            if error is not None and code_of(error) == "LOST_OWNERSHIP":
                self._give_way(self._span)
        self._scope.__exit__(kind, error, trace)
        if self._token is not None:
            ABOUT.reset(self._token)

    def ran(self, outcome: Input) -> None:
        """Note how the attempt ended, before that is committed."""
        metrics.timed(metrics.step_seconds, self._kind).observe(time.perf_counter() - self._begun_s)
        self.outcome = _OUTCOMES.get(type(outcome), "done")
        if isinstance(outcome, StepDone) and isinstance(outcome.result, StepCancelled):
            self.outcome = "cancelled"
        if isinstance(outcome, StepFailed):
            self.outcome = outcome.failure.category
            if outcome.failure.category != "permanent":
                metrics.count(metrics.retries, metrics.codes(outcome.failure.code)).inc()
            if self._span is not None:
                self._span.fail(outcome.failure.code)

    def _give_way(self, span: Span) -> None:
        """Take another id: the scheduler has sent the span of this attempt when it gave the run
        away.
        """
        span.put(lost=True)
        span.place = traces.another(span.place)


def note_claim(rung_at: datetime | None, now: datetime, rings: int) -> None:
    """Note how long a doorbell was under way, if it was the first of its kind."""
    if rung_at is not None and rings == 1:
        wait_s = (now - rung_at).total_seconds()
        metrics.queue_wait_seconds.observe(max(0.0, wait_s))
