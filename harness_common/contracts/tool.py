"""What a tool is: a specification that is data, and a function that does the work.

The runner (`harness_worker.tools.runner`) validates, asks policy, writes the ledger, runs and
normalises; a tool only does its one thing and returns a value or raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, Protocol
from uuid import UUID

from harness_common.contracts.memory import Memory
from harness_common.contracts.sandbox import Limits, SandboxTier
from harness_common.core.message import Json


class EffectClass(StrEnum):
    """What repeating a call would do."""

    READ = "read"
    """Changes nothing: may be repeated at will."""
    IDEMPOTENT = "idempotent"
    """Changes something, but the same key twice is the same change: repeated with the same key."""
    WRITE = "write"
    """May happen once: an intent is recorded first; one without a result is for a person."""


Risk = Literal["low", "medium", "high"]


class Reach(StrEnum):
    """Where a tool's time goes, which sets its default timeout: 10 s external, 30 s internal."""

    INTERNAL = "internal"
    EXTERNAL = "external"


TIMEOUT_S: Final = {Reach.EXTERNAL: 10.0, Reach.INTERNAL: 30.0}
"""The timeout of a tool that declares none."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The declared nature of a tool; `input_schema` is JSON Schema 2020-12 with an object at the
    top.
    """

    name: str
    description: str
    input_schema: Json
    effect: EffectClass
    version: str = "1"
    permission_tags: frozenset[str] = frozenset()
    timeout_s: float | None = None
    """None takes the default of `reach`."""
    reach: Reach = Reach.INTERNAL
    cost_estimate_usd: float = 0.0
    sandbox: SandboxTier = SandboxTier.NONE
    queue: str | None = None
    untrusted_output: bool = False
    """True when results come from outside the tenant's control (the web): their messages are
    labelled so.
    """
    risk: Risk = "low"
    """How much a mistaken call could cost; policy rules may ask for a person by it."""
    outbound: bool = False
    """True when a call can carry data out of the tenant's control."""
    reads_private: bool = False
    """True when results may hold what must not leave the tenant."""
    repeatable: bool = False
    """True for a `write` that may be asked for twice with the same arguments in one answer; of
    others the second gets the first's result.
    """
    max_attempts: int | None = None
    """Attempts within a step after a timeout or a transient failure: None is 2 for `read`, 1 for
    the rest. A `write` has always one.
    """
    cache_s: float | None = None
    """How long a `read` result may be reused for the same arguments within a session; None:
    never.
    """
    fallback: str | None = None
    """A tool that takes the same arguments and is called in its place while it is broken."""
    output_schema: Json | None = None
    """What a result must look like; one that does not is kept as an artifact and explained."""
    limits: Limits = field(default_factory=Limits)
    """Of a tool in a sandbox."""
    hosts: tuple[str, ...] = ()
    """Where a tool in sandbox tier A may connect, as `host` or `host:port`; none without."""

    secrets: tuple[str, ...] = ()
    """Names of the tenant's secrets that the tool may ask its context for; no others are given."""

    @property
    def limit_s(self) -> float:
        """Return how long one attempt may take."""
        return self.timeout_s or TIMEOUT_S[self.reach]


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """Bytes that a tool wants kept; stored content-addressed and referenced by id from then on."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returns when a plain value is not enough."""

    content: Json
    """A string or a JSON value for the model."""
    artifacts: tuple[NewArtifact, ...] = ()
    cost_usd: float = 0.0
    untrusted: bool = False
    """True when this result may hold what came from outside, though the tool's do not always."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Return this to let go of the worker until `at`; the tool is called again then with
    `ctx.resumed` set.
    """

    at: datetime


@dataclass(frozen=True, slots=True)
class AskUser:
    """Return this to ask a person; the run waits without a worker, and the answer is the result.

    Not for tools whose effect is `write`.
    """

    question: str
    choices: tuple[str, ...] = ()
    """When given, the answer is one of these."""
    timeout_s: float | None = None
    """After which the result is the error INPUT_TIMEOUT; None waits for ever."""


@dataclass(frozen=True, slots=True)
class NeedInput:
    """Return this when the call has ended without doing anything that counts, because it lacks what
    only a person can say. The run waits without a worker; then the tool is called again with
    `ctx.state` and the person's words in `ctx.answer`.

    Unlike `AskUser` it is for tools of every effect: nothing has happened yet.
    """

    question: str
    state: Json
    """Kept in the ledger and shown to nobody; at most 256 KB as JSON."""
    choices: tuple[str, ...] = ()
    timeout_s: float = 30 * 86_400
    """After which the result is the error INPUT_TIMEOUT."""


@dataclass(frozen=True, slots=True)
class StartChild:
    """Return this to let another agent work on something; its output is the result.

    The child spends its parent's budget. Not for tools whose effect is `write`.
    """

    agent: str
    input: str
    agent_version: int | None = None
    max_tokens: int | None = None
    """The child's share of what its parent has left; None shares it evenly between the children of
    one answer. The same for `max_cost_usd`.
    """
    max_cost_usd: float | None = None
    on_failure: Literal["collect", "fail"] = "collect"
    """`collect` tells the model of a failed child; `fail` fails the parent too."""


class ToolContext(Protocol):
    """What a running tool may know and say."""

    tenant_id: str
    run_id: str
    session_id: str
    call_id: str
    idempotency_key: str
    """The same for every attempt at this call; pass it downstream."""
    attempt: int
    now: datetime
    """When the step started."""
    resumed: datetime | None
    """The time a `WaitUntil` of this call asked for, once it has come."""
    state: Json
    """What the `NeedInput` of this call kept; None before there was one."""
    answer: str | None
    """What a person answered to it."""
    config: Mapping[str, Json]
    """The operator's settings for this tool (`tools.<name>` of the worker's tool configuration)."""

    @property
    def memory(self) -> Memory:
        """What is remembered for the run's user in its agent's namespace."""
        ...

    async def skill(self, name: str, document: str | None = None) -> Json:
        """Return the text of a skill that the run has pinned, or of one of its documents.

        Raises `NotFound` that names those there are.
        """
        ...

    async def secret(self, name: str) -> str:
        """Return a secret of the tenant whose name the tool declares (`ToolSpec.secrets`).

        It is for use against the outside only: it is blotted out of whatever the tool returns,
        raises, reports, keeps or logs. Raises `Denied` for a name that is not declared, `NotFound`
        for a secret that the tenant does not have.
        """
        ...

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Tell whoever watches how far it is; becomes a `tool.progress` event."""
        ...

    async def artifact(self, name: str, media_type: str, data: bytes) -> str:
        """Keep bytes now and get their artifact id (`art_…`)."""
        ...

    async def read_artifact(self, artifact_id: str) -> bytes:
        """Read an artifact of the same tenant."""
        ...


ToolReturn = ToolOutput | WaitUntil | AskUser | NeedInput | StartChild | Json
ToolFunction = Callable[..., Awaitable[ToolReturn] | ToolReturn]
"""`fn(ctx, **arguments)`; async, or sync (then it runs in a thread)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A specification and its function."""

    spec: ToolSpec
    fn: ToolFunction
    meta: Mapping[str, Any] = field(default_factory=dict)


class ToolSource(Protocol):
    """Where tools come from that a worker does not hold itself: those a tenant declared, those of
    its MCP servers.
    """

    async def find(self, tenant_id: UUID, names: Sequence[str]) -> list[Tool]:
        """Return the tenant's tools of these names, those that this source knows."""
        ...
