"""What a start is asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from harness_common.broker.publish import Doorbell
from harness_common.commands.control import Asked
from harness_common.core.message import Json, Message
from harness_common.core.run import Status

OnBusy = Literal["reject", "enqueue", "interrupt", "steer"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The call that a child run is the work of; one call has one child."""

    run_id: UUID
    step: int
    index: int
    depth: int
    """Runs above the child."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """A request for a new run. `idempotency_key` with the digest of the request body makes it safe
    to repeat.
    """

    agent: str
    input: str
    agent_version: int | None = None
    skills: tuple[str, ...] = ()
    """Skills that the run works with beside its agent's: `name@version` or `name`."""
    session_id: UUID | None = None
    title: str | None = None
    user_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 6
    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    timeout_s: float | None = None
    concurrency_key: str | None = None
    """At most `concurrency_max` runs of a key run at once; the others wait in the order they came.
    """
    concurrency_max: int = 1
    on_busy: OnBusy = "reject"
    """What to do when the session's last run is still going."""
    parent: Parent | None = None
    marks: tuple[str, ...] = ()
    """What has touched whoever wrote the input (`core.taint`): a child has what its parent has."""
    output_schema: Json = None
    """JSON Schema of the output, in place of the agent's."""
    earlier: tuple[Message, ...] = ()
    """A conversation that the client brings along; the input comes after it."""
    follows: UUID | None = None
    """The run whose conversation this one goes on from: within `session_id` if that run is its last
    one, else as a branch in a new session.
    """
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """What this request changes of its agent (`contracts.request_options`)."""
    created_by: str = ""
    trace_id: str = ""
    idempotency_key: str | None = None
    body_digest: str = ""
    idempotency_ttl_s: int = 24 * 3600

    def trace_of(self, run_id: UUID) -> str:
        """Return the trace that the run belongs to: the caller's, or its own."""
        return self.trace_id or run_id.hex


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A run that was asked to stop."""

    run_id: UUID
    asked: Asked


@dataclass(frozen=True, slots=True)
class Started:
    """The accepted run; `replayed` when the idempotency key had made it before. `doorbell` when it
    was admitted at once.
    """

    run_id: UUID
    session_id: UUID | None
    status: Status
    replayed: bool = False
    doorbell: Doorbell | None = None
    steered: bool = False
    """No new run: the input went to the session's run under way."""
    interrupted: tuple[Interrupted, ...] = ()
    """The session's runs that were asked to stop, so that this one can begin."""
