"""The values of one tool call: its ledger row as read, the step it belongs to, how it ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from harness_common.broker.publish import Rings
from harness_common.contracts.blob import Blobs
from harness_common.contracts.sandbox import Sandbox
from harness_common.contracts.skill import PinnedSkill
from harness_common.coord.live import LiveStream
from harness_common.core.budget import Spent
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import CallStatus
from harness_common.settings import Settings
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_common.store.secret_values import TenantSecrets
from harness_worker.memory.run_memory import RunMemory
from harness_worker.tools.breakers import Breakers
from harness_worker.tools.policy_view import PolicyView
from harness_worker.tools.registry import ToolRegistry
from harness_worker.tools.threads import ToolThreads


class CancelAsked(Exception):
    """The intent was refused because a cancel was asked: nothing more is started."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A ledger row as read at the start of the step."""

    index: int
    tool_use_id: str
    name: str
    arguments: Json
    status: CallStatus
    attempt: int
    attempt_id: UUID | None
    resume_at: datetime | None
    row: dict[str, Any]
    policy: Json = None
    """The decision about it in this step, as the ledger keeps it."""
    approval_id: UUID | None = None
    """A person's yes that the call uses up when it is made."""
    edited: bool = False
    """Whether a person changed the arguments: the result says so."""

    @staticmethod
    def from_row(row: dict[str, Any]) -> PendingCall:
        """Read a row of `tool_calls` (as JSON from `load.sql`)."""
        return PendingCall(
            row["idx"],
            row["tool_use_id"],
            row["name"],
            row["arguments"],
            CallStatus(row["status"]),
            row["attempt"],
            UUID(row["attempt_id"]) if row["attempt_id"] else None,
            datetime.fromisoformat(row["resume_at"]) if row["resume_at"] else None,
            row,
        )

    @property
    def serves(self) -> str:
        """Name the tool that makes this call: a fallback that began to wait goes on."""
        return (self.status is CallStatus.RUNNING and self.row.get("served_by")) or self.name

    @property
    def asked(self) -> Json:
        """Return the arguments as the model asked for them."""
        return self.row["arguments"]

    def changed_arguments(self) -> Json:
        """Return the arguments if a person changed them, else None."""
        return None if self.arguments == self.asked else self.arguments

    @property
    def ran(self) -> Json:
        """Return the arguments that a recorded result is of."""
        edited = self.row.get("ran_arguments")
        return self.asked if edited is None else edited

    @property
    def waits_until(self) -> datetime | None:
        """Return the time that the call waits for; None once its question is answered."""
        answered = self.answer is not None and self.row.get("result") == "input"
        return None if answered else self.resume_at

    @property
    def kept(self) -> dict[str, Any] | None:
        """Return what a `NeedInput` of this call kept: state, question and choices."""
        return self.row.get("kept")

    @property
    def answer(self) -> str | None:
        """Return what a person answered to it."""
        return self.row.get("answer")

    def is_dead_intent(self) -> bool:
        """Tell whether an earlier owner began a write whose result is not recorded."""
        return (
            self.status is CallStatus.RUNNING
            and self.resume_at is None
            and self.row["effect"] == "write"
        )

    def may_have_acted(self) -> bool:
        """Tell whether a write that waits was begun, rather than only asked a person before it."""
        only_asked = self.kept is not None and self.answer is None
        begun = self.status is CallStatus.RUNNING and self.row["effect"] == "write"
        return begun and not only_asked

    def recorded(self) -> CallOutcome:
        """Return the result that the ledger already holds."""
        row = self.row
        return CallOutcome(
            index=self.index,
            tool_use_id=self.tool_use_id,
            name=self.name,
            status=self.status,
            content=row["result"] or "",
            error_type=row["error_type"],
            trust=row["trust"] or "trusted",
            duration_ms=row["duration_ms"] or 0.0,
            cost_usd=row["cost_usd"] or 0.0,
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            artifacts=tuple(row["artifacts"] or ()),
            attempt=self.attempt,
            effect=row["effect"],
            tool_version=row["tool_version"],
            policy=row.get("policy"),
            recorded=True,
            fingerprint=row.get("fingerprint"),
            ran_arguments=row.get("ran_arguments"),
            failed_attempts=tuple(row.get("failed_attempts") or ()),
            duplicate_of=row.get("duplicate_of"),
            cached_from=row.get("cached_from"),
            served_by=row.get("served_by"),
        )


class HeldRun(Protocol):
    """What the runner needs of the worker's hold on the run (see `runtime.Held`)."""

    writing: int
    cancel_requested: bool
    release_asked: bool
    paid: Spent

    def keep(self, spent: Spent) -> None:
        """Note that answers of models that were paid for are on record."""

    def find(self, spent: Spent) -> None:
        """Note that answers of an earlier attempt at the step were on record."""


@dataclass(frozen=True, slots=True)
class ToolScope:
    """One tools step as the runner sees it."""

    db: Database
    blobs: Blobs
    registry: ToolRegistry
    settings: Settings
    clock: Callable[[], datetime]
    threads: ToolThreads
    run: StoredRun
    allowed: tuple[str, ...]
    step: int
    started_at: datetime
    held: HeldRun
    live: LiveStream
    bell: Rings
    breakers: Breakers
    policy: PolicyView
    secrets: TenantSecrets
    sandbox: Sandbox | None = None
    memory: RunMemory | None = None
    skills: tuple[PinnedSkill, ...] = ()
    calls: Counter[str] = field(default_factory=Counter)
    """How many calls of this step each tool has: children of one tool share a budget evenly."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a child is started: its share depends on those before it."""
    result_bytes: int | None = None
    """The longest that this agent is shown a result; None leaves the setting alone."""

    @property
    def inline_bytes(self) -> int:
        """Return the longest that a result is shown."""
        limit = self.settings.tool.inline_result_bytes
        return limit if self.result_bytes is None else min(limit, self.result_bytes)

    def key(self, index: int) -> dict[str, Any]:
        """Name a ledger row."""
        return {
            "tenant_id": self.run.tenant_id,
            "run_id": self.run.id,
            "step": self.step,
            "idx": index,
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, before it becomes an outcome."""

    status: CallStatus
    content: str
    error_type: str | None = None
    artifacts: tuple[str, ...] = ()
    cost_usd: float = 0.0
    duration_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    untrusted: bool = False
    marks: tuple[str, ...] = ()
    """What a child has touched, which its parent has then too."""
    wait: Wait | None = None
    """Set while the call waits; its status is `running` then, or `awaiting_approval`."""
    began: bool = False
    """True when the tool was called."""
    why: str = ""
    """The cause of a failure, without the words for the model."""
    fault: bool = False
    """True when the tool itself is at fault, not the call: that counts against its breaker."""
    retry: bool = False
    """True when another attempt may do better."""
    retry_after_s: float | None = None
    """A minimum."""
    failed_attempts: tuple[Json, ...] = ()
    """The attempts before this one."""

    def changed(self, **fields: Any) -> Ended:
        """Return the same with other values of these fields."""
        return replace(self, **fields)

    policy: Json = None
    """The decision about a call that was not made; None: as the call has it."""

    @property
    def resume_at(self) -> datetime | None:
        """Return the time that the ledger keeps with a call that waits."""
        return self.wait.until if self.wait else None
