"""One doorbell answered: lease, claim, load, run the step, commit, let go, ring the next.

The order is the design. The lease is taken first and released before the next doorbell; the claim
in Postgres is what makes this process the owner; nothing is open while the step runs; the commit
compares everything that was seen.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import structlog

from harness_common.broker.publish import Doorbell
from harness_common.coord.redis import RedisFault
from harness_common.core.budget import FREE, Spent, spent_by, spent_on, with_spent
from harness_common.core.context_view import first_needed
from harness_common.core.errors import HarnessError, Limited, LostOwnership, NewerVersion
from harness_common.core.graph import MODEL_CALL
from harness_common.core.ids import encode
from harness_common.core.inputs import Input, Released, StepDone, StepFailed
from harness_common.core.retry import classify
from harness_common.core.run import TERMINAL, Status
from harness_common.core.step import Failure, StepCancelled
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.redaction import redactor
from harness_common.store.apply import settle
from harness_common.store.claim import Claimed, Tail, Want, fresh_calls, load_history, unclaim
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.rows import StoredRun
from harness_common.store.writes import Applied, NextClaim, StepRecord
from harness_worker.budgets import reserve
from harness_worker.runtime import Held, Runtime
from harness_worker.steps import STEPS
from harness_worker.steps.context import StepContext
from harness_worker.telemetry import metrics
from harness_worker.telemetry.steps import Attempt, note_claim
from harness_worker.tools.call import CancelAsked

log = structlog.get_logger()

_FAR_S: Final = 60.0
"""Where `claim.sql` stops to give places in a rate."""


async def answer(
    runtime: Runtime, tenant_id: UUID, run_id: UUID, version: int, traceparent: str = ""
) -> str:
    """Answer a doorbell; returns what came of it, for the log and Flower. `traceparent` names the
    doorbell's span, if it has one.

    Never raises for a lost race: a duplicate, late or stale doorbell is harmless.
    """
    if runtime.stopping or run_id in runtime.held:
        return "not taken"
    claim_id = uuid4()
    lease = f"{runtime.worker.hex}:{claim_id.hex}"
    held = Held(tenant_id, run_id, lease, claim_id)
    runtime.held[run_id] = held
    bell: Doorbell | None = None
    try:
        if not await _take_lease(runtime, held):
            runtime.counters.lease_held += 1
            metrics.count(metrics.lost_races, "lease held").inc()
            return "lease held"
        known = runtime.known(run_id)
        with metrics.claim_seconds.time():
            want = Want(tenant_id, run_id, version, claim_id, known.next - 1)
            claimed = await runtime.claims(want)
        if claimed is None:
            runtime.counters.claim_missed += 1
            metrics.count(metrics.lost_races, "nothing to do").inc()
            return "nothing to do"
        _note_claim(runtime, claimed)
        last = await _work(runtime, held, claimed, known, traceparent)
        if last.should_ring:
            bell = _doorbell(last.run)
        return str(last.run.state.status)
    except LostOwnership:
        runtime.counters.lost_ownership += 1
        metrics.count(metrics.lost_races, "lost ownership").inc()
        return "lost ownership"
    except DatabaseUnavailable as error:
        log.warning("step.database_unavailable", run_id=encode("run", run_id), error=str(error))
        return "database unavailable"
    except NewerVersion as error:
        log.warning("run.needs_newer_version", run_id=encode("run", run_id), error=error.message)
        await unclaim(runtime.db, tenant_id, run_id, held.claim_id)
        return "given back to a newer version"
    finally:
        runtime.held.pop(run_id, None)
        await _release_lease(runtime, held)
        if bell is not None:
            runtime.bell.ring(bell)


async def _take_lease(runtime: Runtime, held: Held) -> bool:
    """Take the lease. Without Redis the work goes on: the claim decides, at the price of a lost
    race at times.
    """
    try:
        held.leased = await runtime.leases.take(held.run_id, held.lease)
    except RedisFault as error:
        log.warning("lease.unavailable", run_id=encode("run", held.run_id), error=str(error))
        held.leased = True  # the reply may be what got lost: renew and release it like a lease
    return held.leased


async def _release_lease(runtime: Runtime, held: Held) -> None:
    if not held.leased:
        return
    held.leased = False
    try:
        await runtime.leases.release(held.run_id, held.lease)
    except RedisFault as error:
        log.warning("lease.release_failed", run_id=encode("run", held.run_id), error=repr(error))


def _note_claim(runtime: Runtime, claimed: Claimed) -> None:
    runtime.clock.set(claimed.now)
    note_claim(claimed.rung_at, claimed.now, claimed.run.rings)
    if claimed.rung_at is not None and claimed.run.rings == 1:
        age_s = (claimed.now - claimed.rung_at).total_seconds()
        runtime.counters.queue_age_s = max(runtime.counters.queue_age_s, age_s)


async def _work(
    runtime: Runtime, held: Held, claimed: Claimed, known: Tail, traceparent: str
) -> Applied:
    """Run steps of an owned run: one, or up to `steps_per_task` inline, each owned, fenced and
    committed on its own.
    """
    settings = runtime.settings
    until = time.monotonic() + settings.worker.turn_ms / 1000
    run = claimed.run
    tail = claimed.tail(known)
    calls = claimed.calls
    done = 0
    while True:
        done += 1
        go_on = (
            done < settings.steps_per_task
            and not claimed.rated
            and time.monotonic() < until
            and not runtime.stopping
            and not held.cancel_requested
        )
        keep = NextClaim(uuid4(), runtime.worker, settings.worker.step_timeout_s) if go_on else None
        with Attempt(run, traceparent if done == 1 else "") as seen:
            applied = await _one_step(runtime, held, claimed, run, tail, calls, keep, seen)
        tail = tail.grown(applied.transition.messages, first_needed(applied.run.state.memo))
        _after_commit(runtime, run, applied, tail)
        if keep is None or applied.run.claim_id != keep.claim_id:
            return applied
        held.claim_id = keep.claim_id
        run = applied.run
        calls = fresh_calls(applied) if applied.transition.proposed else ()


async def _one_step(
    runtime: Runtime,
    held: Held,
    claimed: Claimed,
    run: StoredRun,
    tail: Tail,
    calls: tuple[dict[str, Any], ...],
    keep: NextClaim | None,
    seen: Attempt,
) -> Applied:
    """Run and commit one step over a context frozen now."""
    started_at = runtime.clock.now()
    record = StepRecord(started_at, runtime.worker)
    held.begin()
    outcome: Input
    try:
        _require_known(run)
        await _wait_for_place(claimed)
        history = await load_history(runtime.db, run) if run.prev_run_id else ()
        spec = await runtime.agent(run)
        ctx = StepContext(
            run=run,
            spec=spec,
            history=tuple(one.message for one in history),
            messages=tail.messages,
            calls=calls,
            started_at=started_at,
            runtime=runtime,
            held=held,
            first=tail.first,
            past=history,
        )
        if claimed.budgeted:
            run = await reserve(ctx)
            ctx = replace(ctx, run=run)
        outcome = await _run_step(runtime, held, ctx)
        if isinstance(outcome, StepDone) and _turn_is_over(runtime, claimed, run):
            outcome = replace(outcome, turn_over=True)
    except (LostOwnership, DatabaseUnavailable, NewerVersion):
        raise
    except Exception as error:  # noqa: BLE001 - classified in one place, recorded on the run
        outcome = _failed(run, error, started_at, held, calls)
    if isinstance(outcome, Released):
        keep = None
    seen.ran(outcome)
    commit = partial(settle, runtime.db, runtime.commits, run, step=record)
    with metrics.commit_seconds.time():
        try:
            return await commit([outcome], now=runtime.clock.now(), keep=keep)
        except (LostOwnership, DatabaseUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - see the next line
            # What the step gave cannot be written: that ends the run, rather than repeat it for
            # ever.
            failed = _failed(run, error, started_at, held, calls)
            return await commit([failed], now=runtime.clock.now())


def _require_known(run: StoredRun) -> None:
    """Refuse a step of a kind that this version does not know; a cancel needs no knowledge."""
    kind = run.state.next_kind
    if kind not in STEPS and not run.state.cancel_requested:
        raise NewerVersion(f"its next step is of the kind {kind!r}")


async def _wait_for_place(claimed: Claimed) -> None:
    """Hold the step to the rate of its tenant: a short wait here, a long one without the slot."""
    if claimed.put_off:
        raise Limited(
            "steps per second are limited",
            code="STEP_RATE",
            # Those whose place is far away come again at different times.
            retry_after_s=claimed.wait_s - 10 * random.random() * (claimed.wait_s >= _FAR_S),
            scope="steps_per_s",
        )
    if claimed.wait_s > 0:
        await asyncio.sleep(claimed.wait_s)


def _turn_is_over(runtime: Runtime, claimed: Claimed, run: StoredRun) -> bool:
    """Tell whether the run has had its turn while others wait."""
    turn_at = run.state.turn_at
    if not claimed.crowded or turn_at is None:
        return False
    return (runtime.clock.now() - turn_at).total_seconds() >= runtime.settings.worker.turn_s


def _failed(
    run: StoredRun,
    error: Exception,
    started_at: datetime,
    held: Held,
    calls: Sequence[Mapping[str, Any]],
) -> StepFailed:
    """Make the input of an attempt that raised; what nobody named is logged with its trace. What
    was paid in it is charged unless the error says itself what it has cost.
    """
    if not isinstance(error, HarnessError):
        log.error(
            "step.crashed", run_id=encode("run", run.id), step=run.state.step + 1, exc_info=error
        )
    own_place = isinstance(error, Limited) and error.error_code == "STEP_RATE"
    failure = _charged(_without_secrets(run, classify(error)), held.paid)
    jitter = 0.0 if own_place else random.random()
    return StepFailed(failure, started_at, jitter, _kept(held, calls))


def _charged(failure: Failure, paid: Spent) -> Failure:
    """Let a failure say what answers of models have cost before it."""
    detail = failure.detail or {}
    if spent_by(detail) != FREE:
        return failure
    return replace(failure, detail=with_spent(detail, paid) or None)


def _without_secrets(run: StoredRun, failure: Failure) -> Failure:
    """Blot out the tenant's secrets: a server may quote the credential that it was sent."""
    return replace(
        failure,
        message=redactor.clean(run.tenant_id, failure.message),
        detail=redactor.clean_json(run.tenant_id, failure.detail),
    )


async def _run_step(runtime: Runtime, held: Held, ctx: StepContext) -> Input:
    """Run the step as a task that a cancel, a stop or the step's timeout can interrupt."""
    if ctx.run.state.cancel_requested:
        return _cancelled(held, ctx)
    if held.stop_asked():
        return _stopped(held, ctx)
    limit_s = _time_left_s(ctx, runtime.settings.worker.step_timeout_s)
    held.task = asyncio.ensure_future(STEPS[ctx.run.state.next_kind](ctx))
    try:
        async with asyncio.timeout(limit_s):
            return StepDone(await held.task, ctx.started_at)
    except TimeoutError:
        # At the run's own deadline the rules end the run, whatever kind of failure this is.
        failure = Failure("transient", "STEP_TIMEOUT", f"the step took longer than {limit_s:g} s")
        failure, kept = _charged(failure, held.paid), _kept(held, ctx.calls)
        return StepFailed(failure, ctx.started_at, random.random(), kept)
    except CancelAsked:
        return _stopped(held, ctx)
    except asyncio.CancelledError:
        if held.stop_asked():
            return _stopped(held, ctx)
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        failure = Failure("transient", "STEP_INTERRUPTED", "the step was cancelled from within")
        failure, kept = _charged(failure, held.paid), _kept(held, ctx.calls)
        return StepFailed(failure, ctx.started_at, random.random(), kept)
    finally:
        held.task = None


def _time_left_s(ctx: StepContext, longest_s: float) -> float:
    """Return how long the step may take: its own limit, or less if the run's deadline is nearer."""
    deadline = ctx.run.state.limits.deadline
    if deadline is None:
        return longest_s
    return max(0.0, min(longest_s, (deadline - ctx.started_at).total_seconds()))


def _stopped(held: Held, ctx: StepContext) -> Input:
    """Return what an interrupted step means. A cancel counts only if Postgres holds it too."""
    if held.release_asked and not held.cancel_requested:
        return Released("the worker stops", held.paid)
    return _cancelled(held, ctx)


def _cancelled(held: Held, ctx: StepContext) -> StepDone:
    """End a step that nobody goes on with, with what its answers of models have cost: also those
    that the ledger has, since no step counts them any more.
    """
    return StepDone(StepCancelled(spent=held.paid, kept=_kept(held, ctx.calls)), ctx.started_at)


def _kept(held: Held, calls: Sequence[Mapping[str, Any]]) -> Spent:
    """Return what those answers of models of the step have cost that are on record."""
    kept = held.kept
    for row in calls:
        if row["name"] == MODEL_CALL and CallStatus(row["status"]) in ENDED:
            kept += spent_on(row)
    return kept


def _after_commit(runtime: Runtime, run: StoredRun, applied: Applied, tail: Tail) -> None:
    """Remember what the next step needs, and tell whoever watches that there are new events."""
    state = applied.run.state
    runtime.counters.steps += state.step > run.state.step
    if state.status in TERMINAL:
        runtime.forget(run.id)
    elif tail.next == state.messages + 1:
        runtime.remember(run.id, tail.messages, tail.first)
    last = applied.first_seq + len(applied.transition.events) - 1
    runtime.live.emit(run.id, {"type": "committed", "seq": last, "status": str(state.status)})
    if state.status is not Status.RUNNING:
        runtime.live.nudge()


def _doorbell(run: StoredRun) -> Doorbell:
    return Doorbell(
        run.tenant_id, run.id, run.version, run.bell_queue, run.priority,
        trace_id=run.trace_id, step=run.state.step + 1,
    )  # fmt: skip


def release_all(runtime: Runtime) -> None:
    """Ask every held run to be given back (the process stops)."""
    for held in list(runtime.held.values()):
        held.release()
