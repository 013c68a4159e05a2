"""Child runs: what a call that starts one does, the first time and each time the step is run again.

One call has one child, found by (parent, step, index): a crash between its start and the parent's
commit starts no second one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from harness_common.commands import Parent, Started, StartRun, fork_child, start_run
from harness_common.contracts.tool import StartChild
from harness_common.core.budget import MAX_DEPTH, Limits, is_shared
from harness_common.core.errors import Conflict, Invalid, NotFound, Permanent
from harness_common.core.handoff import AGENT_TOOL
from harness_common.core.ids import encode
from harness_common.core.run import TERMINAL, Status
from harness_common.core.step import Wait
from harness_common.core.stop_reasons import StopReason
from harness_common.core.taint import UNTRUSTED
from harness_common.core.tool_call import CallStatus
from harness_common.store.connection import Row
from harness_common.store.memories import owner_of
from harness_worker.tools.call import Ended, PendingCall, ToolScope

_SPAWN: Final = "spawn_run"


class ChildFailed(Permanent):
    """A child failed whose parent was to fail with it."""

    code = "CHILD_FAILED"


@dataclass(frozen=True, slots=True)
class _Share:
    """What a child may spend of its parent's budget."""

    max_tokens: int | None
    max_cost_usd: float | None


async def start_or_join(scope: ToolScope, call: PendingCall, wanted: StartChild) -> Ended:
    """Start the call's child, or look how far it is: its result, or that it is waited for.

    Raises `ChildFailed` when it failed and `on_failure` is `fail`, `Invalid` for an agent that does
    not exist, a nesting too deep or a budget used up.
    """
    child = await _child(scope, call.index)
    if child is None:
        child = await _begin(scope, call, wanted)
    run_id = encode("run", child["id"])
    if Status(child["status"]) not in TERMINAL:
        about = {"run": run_id, "agent": wanted.agent}
        return Ended(CallStatus.RUNNING, "child", wait=Wait(call.index, "child", None, about))
    spent = {
        "cost_usd": child["cost_usd"],
        "input_tokens": child["input_tokens"],
        "output_tokens": child["output_tokens"],
        "untrusted": child["untrusted"] or UNTRUSTED in child["marks"],
        "marks": tuple(child["marks"]),
    }
    if child["status"] == Status.SUCCEEDED:
        return Ended(CallStatus.SUCCEEDED, child["output"] or "", **spent)
    error = child["error"] or {}
    why = f"{child['stop_reason']}: {error.get('message', 'no further reason')}"
    if wanted.on_failure == "fail":
        raise ChildFailed(f"child {run_id} ({wanted.agent}) {child['status']}: {why}", child=run_id)
    text = f"Child run {run_id} of agent {wanted.agent} {child['status']} ({why})."
    return Ended(CallStatus.FAILED, text, _error_type(child, wanted), **spent)


def _error_type(child: Row, wanted: StartChild) -> str:
    """Name why a child failed: with the cap of its parent's budget, which it has used up, or not.

    A share that the parent's model chose is the child's own affair.
    """
    limits, reason = Limits.from_json(child["limits"]), child["stop_reason"]
    tokens = wanted.max_tokens is None and is_shared(limits.max_tokens, child["own_tokens"])
    cost = wanted.max_cost_usd is None and is_shared(limits.max_cost_usd, child["own_cost_usd"])
    if (reason == StopReason.TOKEN_BUDGET and tokens) or (
        reason == StopReason.COST_BUDGET and cost
    ):
        return str(StopReason(reason)).upper()
    return "CHILD_FAILED"


async def _child(scope: ToolScope, index: int) -> Row | None:
    return await scope.db.fetch_one("child_read", scope.key(index))


async def _begin(scope: ToolScope, call: PendingCall, wanted: StartChild) -> Row:
    """Start the child of a call. In a retry or fork the child that the call had before is not done
    anew: one that succeeded is the result, and any other goes on from its last checkpoint.
    """
    key = scope.key(call.index)
    async with scope.starting:
        source = await scope.db.fetch_one("child_before", key)
        before = source and await scope.db.fetch_one("child_read", key | source)
        if before is not None and before["status"] == Status.SUCCEEDED:
            return before
        return await _start(scope, call, wanted, before)


async def _start(
    scope: ToolScope, call: PendingCall, wanted: StartChild, before: Row | None
) -> Row:
    run = scope.run
    if run.depth + 1 > MAX_DEPTH:
        raise Invalid(
            f"runs nest at most {MAX_DEPTH} deep; do this yourself",
            code="TOO_DEEP",
            limit=MAX_DEPTH,
        )
    share = await _share(scope, call, wanted)
    request = StartRun(
        agent=wanted.agent,
        agent_version=wanted.agent_version,
        input=wanted.input,
        title=f"child of {encode('run', run.id)}",
        user_id=await owner_of(scope.db, run.tenant_id, run.session_id) or None,
        priority=run.priority,
        max_tokens=share.max_tokens,
        max_cost_usd=share.max_cost_usd,
        marks=tuple(sorted(scope.policy.marks)),
        parent=Parent(run.id, scope.step, call.index, run.depth + 1),
        created_by=encode("run", run.id),
        trace_id=run.trace_id,
    )
    try:
        started = await _go_on(scope, request, before)
    except psycopg.errors.UniqueViolation:
        pass  # another attempt at this step was first
    else:
        if started.doorbell is not None:
            scope.bell.ring(started.doorbell)
        else:
            scope.live.nudge()
    child = await _child(scope, call.index)
    assert child is not None
    return child


async def _go_on(scope: ToolScope, request: StartRun, before: Row | None) -> Started:
    """Start a child, from the last checkpoint of the one before if there is one."""
    if before is not None:
        with contextlib.suppress(Conflict, Invalid, NotFound):  # its checkpoints are no longer kept
            return await fork_child(scope.db, scope.run.tenant_id, before["id"], request)
    return await start_run(scope.db, scope.run.tenant_id, request)


async def _share(scope: ToolScope, call: PendingCall, wanted: StartChild) -> _Share:
    """Divide what the parent has left: what it used and what its other children may use is gone."""
    state = scope.run.state
    key = {"tenant_id": scope.run.tenant_id, "run_id": scope.run.id, "step": scope.step}
    row = await scope.db.fetch_one("children_budget", key)
    assert row is not None
    among = max(1, _starters(scope.calls, call.name) - row["started"])
    tokens = _part(
        state.limits.max_tokens,
        state.input_tokens + state.output_tokens + row["tokens"],
        wanted.max_tokens,
        among,
    )
    cost = _part(
        state.limits.max_cost_usd,
        state.cost_usd + row["cost_usd"],
        wanted.max_cost_usd,
        among,
    )
    return _Share(None if tokens is None else int(tokens), cost)


def _starters(calls: Mapping[str, int], name: str) -> int:
    """Count the calls of this step that start a child: those of this tool, and of all agents that
    are tools, which have a name each.
    """
    return sum(
        count
        for other, count in calls.items()
        if other in {name, _SPAWN} or other.startswith(AGENT_TOOL)
    )


def _part(limit: float | None, gone: float, wanted: float | None, among: int) -> float | None:
    """Return what was wanted, at most what is left; without a wish an even share."""
    if limit is None:
        return wanted
    left = limit - gone
    part = left / among if wanted is None else min(wanted, left)
    if part <= 0 or (isinstance(limit, int) and part < 1):
        raise Invalid(
            f"nothing is left of the run's budget for a child ({gone:g} of {limit:g} are used)",
            code="BUDGET_USED_UP",
            limit=limit,
        )
    return part
