"""Calls of our tools from inside another framework's code: policy, ledger and attempt as ever.

A call has a row of the ledger, found again when the turn is done anew: by the task that makes it,
what it asks for, and which time within that task. So a `write` happens at most once, a recorded
result is given back, and a call that waits for a person lets the whole turn wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from harness_common.contracts.tool import Tool
from harness_common.core.errors import LostOwnership, Permanent
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.store import json_codec
from harness_common.store.connection import run_sql
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_json_text
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.keeper import Keeper
from harness_worker.tools.ledger import canonical
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.runner import ToolRunner

QUESTION: Final = "interrupt"
"""The name under which a question of the framework itself stands in the ledger."""


class NotSaid(Exception):
    """The call waits for something, or nobody knows what became of it: the turn ends here."""


class ToolFailed(Exception):
    """The call ended without a result; the text says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, the same at every attempt: a task of a graph, a turn of an agent."""

    task: str
    attempt: int = 1


@dataclass
class Calls:
    """The calls of one turn."""

    scope: ToolScope
    rows: tuple[dict[str, Any], ...]
    """Ledger rows that earlier attempts at the turn have made."""
    outcomes: dict[int, CallOutcome] = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _times: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._runner = ToolRunner(self.scope)
        self._keeper = Keeper(self.scope)

    def add_tools(self, tools: Sequence[Tool]) -> None:
        """Let the turn use these as well, before its first call; they go before any of their names
        that the worker has.
        """
        names = (tool.spec.name for tool in tools)
        self.scope = replace(
            self.scope,
            registry=ToolRegistry(tools).with_(self.scope.registry),
            allowed=(*self.scope.allowed, *names),
        )
        self.__post_init__()

    def waits(self) -> bool:
        """Tell whether a call waits, or is unknown."""
        return any(
            o.wait is not None or o.status is CallStatus.UNKNOWN for o in self.outcomes.values()
        )

    async def settle(self) -> None:
        """Declare unknown what a dead owner had begun: the turn may not ask for it again, or with
        other arguments.
        """
        for call in map(PendingCall.from_row, self.rows):
            if call.is_dead_intent():
                self.outcomes[call.index] = await self._runner.run(call)

    def key(self, caller: Caller, name: str, arguments: Json) -> str:
        """Name a call within the turn."""
        digest = hashlib.sha256(name.encode() + b"\0" + canonical(arguments)).hexdigest()[:24]
        place = (caller.task, caller.attempt, digest)
        self._times[place] += 1
        return f"{caller.task}:{digest}:{self._times[place]}"

    async def call(self, key: str, name: str, arguments: dict[str, Json]) -> str:
        """Make a call and return its result. Raises `ToolFailed`, `NotSaid`, and what ends the
        step.
        """
        call = await self.propose(key, name, arguments)
        self._runner.expect([call])
        outcome = await self._runner.run(call)
        self.outcomes[call.index] = outcome
        if outcome.wait is not None or outcome.status is CallStatus.UNKNOWN:
            raise NotSaid(f"{name} waits")
        self._keeper.add(outcome)
        if outcome.status is not CallStatus.SUCCEEDED:
            raise ToolFailed(
                outcome.error_type or str(outcome.status), outcome.content or str(outcome.status)
            )
        return outcome.content

    async def propose(self, key: str, name: str, arguments: Json) -> PendingCall:
        """Make the ledger row of a call, or find the one that was made before."""
        scope = self.scope
        async with self._lock, scope.db.connection() as conn:
            sealer = await writing_key(conn, scope.run.tenant_id, scope.db.timeout_s)
            params = {
                "tenant_id": scope.run.tenant_id,
                "run_id": scope.run.id,
                "version": scope.run.version,
                "fence": scope.run.fence,
                "claim_id": scope.run.claim_id,
                "step": scope.step,
                "tool_use_id": key,
                "name": name,
                "arguments": seal_json_text(sealer, json_codec.dumps_text(arguments)),
            }
            rows = await run_sql(conn, "call_propose", params, scope.db.timeout_s)
        if not rows:
            raise LostOwnership("another claim owns the run", run_id=str(scope.run.id))
        return PendingCall.from_row(rows[0]["call"])

    async def ask(self, key: str, question: str, choices: Iterable[str] = ()) -> str | None:
        """Ask a person; returns the answer, or None when the turn has to wait for it."""
        shown = {"question": question, "choices": list(choices)}
        call = await self.propose(key, QUESTION, shown)
        if call.status is CallStatus.SUCCEEDED:
            return str(call.row["result"] or "")
        if call.status in ENDED:
            raise Permanent(
                f"the question was not answered: {call.row['result']}", code="UNANSWERED"
            )
        self.outcomes[call.index] = CallOutcome(
            call.index,
            key,
            QUESTION,
            CallStatus.RUNNING,
            "input",
            wait=Wait(call.index, "input", None, shown),
        )
        return None

    async def keep(self) -> None:
        """Write down what has ended: the turn comes to nothing, and its step commits none of it."""
        await self._keeper.flush()

    async def close(self) -> None:
        """Leave what is still to be kept to the commit of the step."""
        await self._keeper.close()

    def ended(self) -> tuple[CallOutcome, ...]:
        """Return how the calls of the turn ended, those of earlier attempts too."""
        now = {i: o for i, o in self.outcomes.items() if o.wait is None}
        for row in self.rows:
            call = PendingCall.from_row(row)
            if call.status in ENDED and call.name != QUESTION:
                now.setdefault(call.index, call.recorded())
        return tuple(now[i] for i in sorted(now))


WITHIN: ContextVar[str] = ContextVar("harness_within", default="")
"""The calls of tools within which the code runs, each with a slash behind it; empty in none."""
CURRENT: ContextVar[Calls] = ContextVar("harness_calls")
"""The turn that the code runs in."""
