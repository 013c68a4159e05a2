"""Accepting runs within a transaction: what is asked becomes the first state of a run, or is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from harness_common.commands.begin import begin, check_start, made_before, reserve_keys
from harness_common.commands.insert import First, NewRun, insert
from harness_common.commands.request import Started, StartRun
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.output import check_output_schema
from harness_common.contracts.request_options import options_of
from harness_common.core.budget import Limits
from harness_common.core.errors import HarnessError, Invalid
from harness_common.core.hints import assigned
from harness_common.core.ids import encode
from harness_common.core.message import Json, Trust, user
from harness_common.core.run import RunState
from harness_common.core.taint import UNTRUSTED, memo_with
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row
from harness_common.store.db import Database
from harness_common.telemetry.causes import note_made

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Start:
    """A run that is asked for; with an `actor` the audit trail gets a row."""

    request: StartRun
    actor: Actor | None = None


async def accept(
    db: Database, conn: Connection, tenant_id: UUID, starts: Sequence[Start]
) -> list[Started | HarnessError]:
    """Accept runs in the caller's transaction, in this order; of those refused nothing is written.
    Each sees only the slots that those before it take: of one session, and of one idempotency key,
    `starts` has one at most (`commands.together`).
    """
    begun = await begin(db, conn, tenant_id, [one.request for one in starts])
    decided = [_decide(row, one.request) for row, one in zip(begun, starts, strict=True)]
    await _take_keys(db, conn, tenant_id, decided)
    made = iter(await insert(db, conn, tenant_id, [d for d in decided if isinstance(d, NewRun)]))
    out: list[Started | HarnessError] = []
    for one, start in zip(decided, starts, strict=True):
        if not isinstance(one, NewRun):
            out.append(one)
            continue
        out.append(next(made))
        if start.actor is not None:
            detail = {"agent": f"{one.begun['agent_name']}@{one.begun['agent_version']}"}
            entry = Entry("run.create", encode("run", one.begun["run_id"]), detail)
            record(conn, tenant_id, start.actor, entry)
    return out


async def _take_keys(
    db: Database, conn: Connection, tenant_id: UUID, decided: list[_Decided]
) -> None:
    """Reserve the idempotency keys of new runs. A message that steers may have taken one meanwhile,
    since it does not hold the slots: what that key made takes the place of the new run.
    """
    keyed = [
        (n, one)
        for n, one in enumerate(decided)
        if isinstance(one, NewRun) and one.request.idempotency_key is not None
    ]
    wanted = [(one.request, one.begun["run_id"]) for _, one in keyed]
    taken = await reserve_keys(db, conn, tenant_id, wanted)
    for (n, _), before in zip(keyed, taken, strict=True):
        if before is not None:
            decided[n] = before


async def start_in(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, *, actor: Actor | None
) -> Started:
    """Do what `start_run` does within the caller's transaction (but for steering and interrupting,
    which take the session's run before its tenant).
    """
    (outcome,) = await accept(db, conn, tenant_id, [Start(request, actor)])
    return told(outcome, request)


def told(outcome: Started | Exception, request: StartRun) -> Started:
    """Return what was started, and tell whoever causes it; or raise why it was not."""
    if isinstance(outcome, Exception):
        raise outcome
    if not outcome.replayed:
        note_made(outcome.run_id, request.trace_of(outcome.run_id))
    return outcome


_Decided = NewRun | Started | HarnessError
"""What a start becomes: a new run, the run that its key made before, or a refusal."""


def _decide(begun: Row, request: StartRun) -> _Decided:
    if begun["twin"] is not None:
        return made_before(begun["twin"], request)
    try:
        return _new_run(begun, request)
    except HarnessError as error:
        return error


def _new_run(begun: Row, request: StartRun) -> NewRun:
    check_start(begun, request)
    if request.follows is not None and begun["head_run_id"] != request.follows:
        begun = begun | {"session_id": None}  # a branch: the session goes on without it
    spec = AgentSpec.model_validate(begun["spec"])
    if (options := options_of(request.overrides)) is not None:
        options.check(spec.tools)
    if spec.foreign is not None and request.output_schema is not None:
        raise Invalid(
            f"Harness does not hold an agent of kind {spec.kind} to an output_schema",
            field="output_schema",
        )
    state = RunState(
        limits=_limits(spec, request, begun["now"]),
        next_kind=spec.first_kind,
        messages=len(request.earlier) + 1,
        memo=memo_with({}, request.marks),
    )
    held_for = "session" if begun["session_id"] and begun["going_run_id"] else None
    trust: Trust = "untrusted" if UNTRUSTED in request.marks else "trusted"
    asked = user(request.input, trust)
    said = (*request.earlier, asked if request.parent is None else assigned(asked))
    first = First(state, said, overrides=_overrides(request), held_for=held_for)
    return NewRun(begun, spec, request, first)


def _overrides(request: StartRun) -> dict[str, Json]:
    """Return what the run has in place of its agent's definition."""
    if request.output_schema is None:
        return dict(request.overrides)
    check_output_schema(request.output_schema)
    return {**request.overrides, "output_schema": request.output_schema}


def _limits(spec: AgentSpec, request: StartRun, now: datetime) -> Limits:
    """Pin what the run may use: the request may only narrow what its agent allows."""
    timeout_s = least(spec.timeout_s, request.timeout_s)
    return Limits(
        max_turns=min(spec.turns, request.max_turns or spec.turns),
        max_tokens=least(spec.max_tokens_total, request.max_tokens),
        max_cost_usd=least(spec.max_cost_usd, request.max_cost_usd),
        deadline=now + timedelta(seconds=timeout_s) if timeout_s else None,
    )


def least(a: N | None, b: N | None) -> N | None:
    """Return the smaller of two limits; None is no limit."""
    return min((x for x in (a, b) if x is not None), default=None)
