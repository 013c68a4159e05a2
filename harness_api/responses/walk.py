"""Reads a run's durable record as the facts that a response is made of, from where it begins to
where it ends. The same facts come in the same order whenever they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from harness_api.responses.ids import Ref
from harness_common.contracts.action import is_from_text
from harness_common.core import events as ev
from harness_common.core.budget import spent_by
from harness_common.core.graph import MODEL_CALL
from harness_common.core.message import Json, Message, from_json
from harness_common.core.run import Status
from harness_common.store.connection import Row
from harness_common.store.db import Database
from harness_common.store.run_reads import read_events, read_messages, read_tool_calls

_PAGE: Final = 200
_FAILED: Final = frozenset({ev.STEP_FAILED, ev.RUN_RECOVERED})
_OF_CONTEXT: Final = frozenset({ev.CONTEXT_FULL, ev.CONTEXT_COMPACTED})


@dataclass(frozen=True, slots=True)
class Answered:
    """The model answered in this step."""

    step: int
    message: Message
    input_tokens: int
    output_tokens: int
    restarts: int = 0
    """How many models before had begun to show an answer in this step."""
    counts: bool = True
    """Whether its text is one for a reader: not when another was asked for, or it is a call."""
    node: str | None = None
    """What the one model node of a graph's step said, which was shown while it was said."""


@dataclass(frozen=True, slots=True)
class Paid:
    """Models were asked for something that is not shown."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Ran:
    """All calls of this step have ended."""

    step: int
    calls: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt at this step came to nothing; what was shown of it does not count."""

    step: int
    restarts: int = 0
    """How often its text had begun anew, with another model."""
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Asks:
    """The run waits for answers: the response is over."""

    calls: Sequence[Any]
    """The open questions, as `waiting.calls` shows them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over."""

    status: Status


Fact = Answered | Paid | Ran | Failed | Asks | Ended


class Walk:
    """How far a response has been read."""

    def __init__(self, db: Database, tenant_id: UUID, ref: Ref) -> None:
        self._db, self._tenant_id, self._ref = db, tenant_id, ref
        self.seq = ref.after
        self._n = 0
        self.over = False
        self.at: datetime | None = None
        """When the last thing read happened."""

    async def news(self) -> list[Fact]:
        """Return what has been added since this was asked last; raises `NotFound` for the run."""
        facts: list[Fact] = []
        while not self.over:
            page = await read_events(
                self._db, self._tenant_id, self._ref.run_id, after=self.seq, limit=_PAGE
            )
            for row in page.events:
                self.seq, self.at = row["seq"], row["at"]
                fact = await self._fact(row)
                if fact is not None:
                    facts.append(fact)
                if isinstance(fact, Asks | Ended):
                    self.over = True
                    break
            if page.is_last or not page.events:
                break
        return facts

    async def _fact(self, row: Row) -> Fact | None:
        kind, step, payload = row["type"], row["step"], row["payload"]
        if kind == ev.MODEL_ANSWERED:
            message, restarts = await self._message(step), payload.get("restarts", 0)
            tokens = payload["input_tokens"], payload["output_tokens"]
            counts = not payload.get("again") and not any(map(is_from_text, message.tool_uses()))
            node = await self._node(step) if "call" in payload else None
            return Answered(step, message, *tokens, restarts, counts, node)
        if kind == ev.STEP_COMPLETED and payload.get("calls"):
            return Ran(step, await self._calls(step))
        if kind in _FAILED:
            detail = payload.get("error", {}).get("detail") or {}
            return Failed(step, detail.get("restarts", 0), *_spent(detail))
        if kind in _OF_CONTEXT:
            return _paid(kind, payload)
        if kind == ev.RUN_WAITING and payload.get("for") == "input":
            return Asks([c for c in payload["calls"] if c["kind"] == "input"])
        if kind in ev.TERMINAL_EVENTS:
            return Ended(Status(payload["status"]))
        return None

    async def _node(self, step: int) -> str | None:
        """Return the answer of a graph's step if it has one alone: several are not streamed."""
        said = [row["result"] for row in await self._calls(step) if row["name"] == MODEL_CALL]
        return said[0] or "" if len(said) == 1 else None

    async def _calls(self, step: int) -> list[Row]:
        return await read_tool_calls(
            self._db,
            self._tenant_id,
            self._ref.run_id,
            after=(step, -1),
            to_step=step,
            limit=1_000,
        )

    async def _message(self, step: int) -> Message:
        """Return the answer of a step; answers are asked for in order. A step of a graph may have
        several, and one message: what comes after it is of a later step.
        """
        while True:
            rows = await read_messages(
                self._db, self._tenant_id, self._ref.run_id, after=self._n, limit=_PAGE
            )
            for row in rows:
                if row["step"] > step:
                    return Message("assistant", ())
                self._n = row["n"]
                if row["step"] == step and row["role"] == "assistant":
                    return from_json(row["body"])
            if len(rows) < _PAGE:
                return Message("assistant", ())


def _paid(kind: str, payload: Json) -> Paid | None:
    """Return what a prompt that was full, or its compaction, has cost."""
    if kind == ev.CONTEXT_FULL and any(tokens := _spent(payload)):
        return Paid(*tokens)
    if kind == ev.CONTEXT_COMPACTED and "input_tokens" in payload:
        return Paid(payload["input_tokens"], payload["output_tokens"])
    return None


def _spent(said: Json) -> tuple[int, int]:
    spent = spent_by(said)
    return spent.input_tokens, spent.output_tokens
