"""Runs and what belongs to one, as the client returns them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from harness_api.client.types.view import View

_OVER = frozenset({"succeeded", "failed", "cancelled"})
_NEEDS_A_PERSON = frozenset({"waiting_approval", "waiting_input", "paused"})


class AgentRef(View):
    """The version of an agent that a run is pinned to."""

    name: str
    version: int


class Usage(View):
    """What a run has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class ForkedFrom(View):
    """Where a retried or forked run came from."""

    run_id: str
    step: int


class ParentRef(View):
    """The run and the call that a child works for."""

    run_id: str
    call: str


class Question(View):
    """A question of a run to a person."""

    call: str
    question: str
    choices: tuple[str, ...] = ()
    until: datetime | None = None


class PendingApproval(View):
    """A tool call that a run waits with until somebody approves it."""

    approval: str
    call: str
    tool: str
    risk: str = ""
    reasons: tuple[str, ...] = ()
    digest: str = ""
    until: datetime | None = None


class Run(View):
    """A run as it was when the server answered."""

    id: str
    session_id: str
    agent: AgentRef
    acting: AgentRef | None = None
    """The agent that goes on with it: another one after a hand-off."""
    handoffs: int = 0
    status: str
    phase: str = ""
    turn_state: str = ""
    step: int = 0
    turn: int = 0
    next_kind: str = ""
    attempt: int = 0
    failures: int = 0
    input: str = ""
    output: str | None = None
    output_json: Any = None
    """The output parsed, when an `output_schema` said that it is JSON."""
    stop_reason: str | None = None
    error: dict[str, Any] | None = None
    usage: Usage = Usage()
    limits: dict[str, Any] = Field(default_factory=dict)
    tags: dict[str, str] = Field(default_factory=dict)
    priority: int = 6
    queue: str = ""
    created_by: str = ""
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    not_before: datetime | None = None
    cancel_requested: bool = False
    pause_requested: bool = False
    waiting: dict[str, Any] | None = None
    """What it waits for: `for`, and the calls that wait; for a single queued run `text` says why,
    with its place in line.
    """
    held_for: str | None = None
    concurrency_key: str | None = None
    parent: ParentRef | None = None
    depth: int = 0
    overrides: dict[str, Any] = Field(default_factory=dict)
    """What a fork changed of its agent."""
    dry_run: bool = False
    deaths: int = 0
    suspect: bool = False
    forked_from: ForkedFrom | None = None
    worker: str | None = None
    trace_id: str = ""
    scripted: bool = False
    """Its answers come from a script, not from a model."""
    links: dict[str, str] = Field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more will happen."""
        return self.status in _OVER

    @property
    def needs_a_person(self) -> bool:
        """Tell whether it goes on only when somebody answers."""
        return self.status in _NEEDS_A_PERSON

    @property
    def questions(self) -> list[Question]:
        """List the questions that wait for an answer (`client.runs.answer`)."""
        return [Question.model_validate(c) for c in self._waits("input")]

    @property
    def approvals(self) -> list[PendingApproval]:
        """List the tool calls that wait for approval (`client.approvals`)."""
        return [PendingApproval.model_validate(c) for c in self._waits("approval")]

    def _waits(self, kind: str) -> list[dict[str, Any]]:
        waiting = self.waiting or {}
        if waiting.get("for") not in {"input", "approval"}:
            return []
        return [c for c in waiting.get("calls", ()) if c.get("kind") == kind]

    @property
    def unknown_calls(self) -> list[str]:
        """List the calls of which a person has to say whether they took effect."""
        waiting = self.waiting or {}
        return list(waiting["calls"]) if waiting.get("for") == "unknown_effect" else []


class Event(View):
    """One entry of a run's durable event log; `seq` counts from 1 without a gap."""

    seq: int
    type: str
    step: int | None = None
    at: datetime
    payload: dict[str, Any] = Field(default_factory=dict)


class Live(View):
    """Something that is shown while it happens and not kept: a piece of an answer
    (`answer.delta`, with `text`) or the progress of a tool (`tool.progress`).
    """

    type: str
    step: int | None = None
    text: str = ""
    durable: bool = False


class StepTokens(View):
    """Tokens of one model answer."""

    input: int = 0
    output: int = 0


class StepTool(View):
    """A tool call as a step shows it."""

    call: str
    tool: str
    status: str
    ms: float | None = None
    error_type: str | None = None


class StepCompaction(View):
    """What a compaction did."""

    how: str
    covers: int
    tokens_before: int = 0
    tokens_after: int = 0


class Step(View):
    """One committed step."""

    step: int
    kind: str
    attempt: int = 1
    fence: int = 0
    worker: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ms: float | None = None
    model: str | None = None
    finish: str | None = None
    first_token_ms: float | None = None
    tokens: StepTokens = StepTokens()
    cost_usd: float | None = None
    scripted: bool = False
    tools: tuple[StepTool, ...] = ()
    compaction: StepCompaction | None = None


class FailedAttempt(View):
    """One attempt at a step that failed, or that a limit put off."""

    step: int
    attempt: int = 1
    kind: str = ""
    category: str = ""
    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    scope: str | None = None
    at: datetime


class ToolCall(View):
    """One entry of the ledger of effects."""

    call: str
    step: int
    index: int
    tool: str
    arguments: Any = None
    effect: str | None = None
    status: str
    attempt: int = 0
    result: str | None = None
    error_type: str | None = None
    trust: str | None = None
    artifacts: tuple[str, ...] = ()
    ms: float | None = None
    cost_usd: float | None = None
    idempotency_key: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    tool_version: str | None = None
    ran_arguments: Any = None
    failed_attempts: tuple[dict[str, Any], ...] = ()
    duplicate_of: str | None = None
    cached_from: str | None = None
    served_by: str | None = None


class Checkpoint(View):
    """A committed step as a checkpoint: what changed, and who wrote it."""

    step: int
    version: int
    kind: str
    delta: dict[str, Any] = Field(default_factory=dict)
    has_snapshot: bool = False
    worker: str | None = None
    fence: int = 0
    attempt: int = 1
    created_at: datetime


class Message(View):
    """One message of a run's conversation."""

    n: int
    step: int
    role: str
    trust: str
    content: tuple[dict[str, Any], ...] = ()


class Relative(View):
    """A run near another one."""

    run_id: str
    relation: str
    status: str
    agent: AgentRef
    stop_reason: str | None = None
    call: str | None = None
    step: int | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime


class Lineage(View):
    """The runs above one, nearest first, and those below it."""

    run_id: str
    ancestors: tuple[Relative, ...] = ()
    children: tuple[Relative, ...] = ()
    forks: tuple[Relative, ...] = ()


class Tree(View):
    """Session, turns, steps and tool calls of a run."""

    session: str
    turns: tuple[dict[str, Any], ...] = ()
    next_cursor: str | None = None

    def joined(self, more: Tree) -> Tree:
        """Return this with the steps of the page after it; a turn that goes on there is one."""
        ours, theirs = list(self.turns), list(more.turns)
        if ours and theirs and ours[-1].get("turn") == theirs[0].get("turn"):
            steps = [*ours[-1].get("steps", ()), *theirs[0].get("steps", ())]
            ours[-1], theirs = ours[-1] | {"steps": steps}, theirs[1:]
        return self.model_copy(update={"turns": (*ours, *theirs), "next_cursor": more.next_cursor})


class Artifact(View):
    """What is known of an artifact."""

    id: str
    run_id: str | None = None
    name: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: datetime


class SessionMessage(Message):
    """One message of a session's conversation."""

    run_id: str
    created_at: datetime


class Session(View):
    """A conversation that owns runs."""

    id: str
    title: str | None = None
    user_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    status: str
    created_at: datetime
    closed_at: datetime | None = None
    head_run_id: str | None = None
    memory_summary: str | None = None
    """What it remembers of its runs, less than 2 KB."""
