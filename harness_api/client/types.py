"""What the client returns. Frozen, and tolerant: fields that a newer server adds are kept."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_OVER = frozenset({"succeeded", "failed", "cancelled"})
_NEEDS_A_PERSON = frozenset({"waiting_approval", "waiting_input", "paused"})


class View(BaseModel):
    """Part of an answer. `model_dump(mode="json")` gives back what the server said."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


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


class Approval(View):
    """A tool call that waits, or waited, for a person."""

    id: str
    run_id: str
    call: str
    agent: str = ""
    run_status: str = ""
    tool: str
    tool_version: str = ""
    policy_version: str = ""
    effect: str | None = None
    arguments: Any = None
    digest: str
    preview: dict[str, Any] | None = None
    risk: str | None = None
    rule: str | None = None
    reasons: tuple[str, ...] = ()
    provenance: dict[str, Any] | None = None
    input_schema: Any = None
    approver_roles: tuple[str, ...] = ()
    four_eyes: bool = False
    status: str
    created_at: datetime
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    reason: str | None = None
    used_at: datetime | None = None
    original_arguments: Any = None
    original_digest: str | None = None
    edited_by: str | None = None


class Effect(View):
    """A tool call with what a person needs to decide about it."""

    run_id: str
    call: str
    tool: str
    arguments: Any = None
    effect: str | None = None
    status: str
    attempts: int = 0
    authorised: int = 1
    result: str | None = None
    error_type: str | None = None
    idempotency_key: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    why: str | None = None
    evidence: dict[str, Any] | None = None
    resolution: dict[str, Any] | None = None
    agent: str = ""
    run_status: str = ""


class PolicyVersion(View):
    """One version of the rules about tool calls."""

    agent: str | None = None
    version: int
    source: str = ""
    rules: dict[str, Any] = Field(default_factory=dict)
    digest: str = ""
    created_at: datetime | None = None
    created_by: str = ""


class RuleLook(View):
    """One rule that was looked at: whether it decided, and why or why not."""

    layer: str
    rule: str
    matched: bool
    why: str


class Decision(View):
    """What policy says of a call, and how it came to that."""

    verdict: str
    rule: str | None = None
    reasons: tuple[str, ...] = ()
    version: str = ""
    risk: str = ""
    approvers: tuple[str, ...] = ()
    four_eyes: bool = False
    expires_s: float | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    facts_digest: str = ""
    looks: tuple[RuleLook, ...] = ()


class CallDecision(Decision):
    """The decision that was made about a call."""

    run_id: str
    call: str
    tool: str
    arguments: Any = None
    status: str = ""
    error_type: str | None = None
    same: bool = True


class Tree(View):
    """Session, turns, steps and tool calls of a run."""

    session: str
    turns: tuple[dict[str, Any], ...] = ()


class Artifact(View):
    """What is known of an artifact."""

    id: str
    run_id: str | None = None
    name: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: datetime


class Agent(View):
    """One version of an agent."""

    id: str
    name: str
    version: int
    spec: dict[str, Any]
    digest: str
    created_at: datetime
    created_by: str = ""
    warnings: tuple[str, ...] = ()
    """Said when it is put: what to look at before a run is started."""


class Tool(View):
    """A tool: one version of a tenant's own, or one that workers have."""

    name: str
    version: str
    source: str
    kind: str
    status: str
    description: str
    input_schema: dict[str, Any]
    effect: str
    risk: str = "low"
    permission_tags: tuple[str, ...] = ()
    sandbox: str = "none"
    timeout_s: float
    cost_estimate_usd: float = 0.0
    outbound: bool = False
    reads_private: bool = False
    untrusted_output: bool = False
    repeatable: bool = False
    max_attempts: int | None = None
    cache_s: float | None = None
    fallback: str | None = None
    queues: tuple[str, ...] = ()
    digest: str
    created_at: datetime
    created_by: str | None = None
    definition: dict[str, Any] | None = None


class ImportedTool(View):
    """What became of one operation of a document."""

    operation: str
    name: str
    version: str | None = None
    changed: bool
    effect: str
    warnings: tuple[str, ...] = ()
    definition: dict[str, Any]


class SkippedOperation(View):
    """An operation of which no tool was made, and why."""

    operation: str
    reason: str


class ImportedTools(View):
    """The outcome of an import."""

    tools: tuple[ImportedTool, ...] = ()
    skipped: tuple[SkippedOperation, ...] = ()
    dry_run: bool = False


class Webhook(View):
    """Whom to tell of what."""

    id: str
    url: str
    types: tuple[str, ...] = ()
    status: str
    disabled_at: datetime | None = None
    disabled_why: str | None = None
    failures: int = 0
    created_at: datetime
    created_by: str = ""
    rotated_at: datetime | None = None
    secret: str = ""
    """Known when it is made and when the secret is rotated."""


class Delivery(View):
    """One thing told, or to be told."""

    id: str
    webhook_id: str
    type: str
    run_id: str | None = None
    status: str
    attempts: int = 0
    response_status: int | None = None
    error: str | None = None
    next_at: datetime | None = None
    created_at: datetime
    delivered_at: datetime | None = None


class EgressRules(View):
    """Where the tenant's own requests may go."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    changed_at: datetime | None = None
    changed_by: str | None = None


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


class ApiKey(View):
    """A key without its secret."""

    id: str
    name: str
    public_id: str = ""
    role: str
    scopes: tuple[str, ...] = ()
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    rotated_from: str | None = None


class NewApiKey(ApiKey):
    """A key just made. `secret` is shown this once."""

    secret: str = Field(repr=False)


class Tenant(View):
    """The tenant of the key, and what it has going."""

    id: str
    name: str
    limits: dict[str, Any] = Field(default_factory=dict)
    running: int = 0
    queued: int = 0
    slot_seconds: float = 0.0


class Secret(View):
    """What may be known of a secret."""

    name: str
    version: int
    created_at: datetime
    set_at: datetime
    set_by: str
    last_used_at: datetime | None = None


class DataKey(View):
    """The newest data key of a tenant."""

    version: int
    kek: str
    created_at: datetime
    rewrapped_at: datetime | None = None


class Encryption(View):
    """Whether bodies that are written now are encrypted."""

    on: bool
    since: datetime | None = None
    data_key: DataKey | None = None


class DataKeys(View):
    """How many data keys each key-encryption key wraps; `rewrapped` by this request."""

    current: str | None
    known: tuple[str, ...] = ()
    data_keys: dict[str, int] = Field(default_factory=dict)
    left: int = 0
    out_of_reach: int = 0
    rewrapped: int = 0


class Platform(View):
    """The limits over all tenants, and what goes on."""

    limits: dict[str, Any] = Field(default_factory=dict)
    running: int = 0
    queued: int = 0


class Worker(View):
    """One life of a worker process."""

    incarnation: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    held: int = 0
    started_at: datetime
    seen_at: datetime
    stopping_at: datetime | None = None
    died_at: datetime | None = None
    died_why: str | None = None


class Schedule(View):
    """When runs are started by themselves. `next` are its coming times."""

    id: str
    name: str
    status: str
    when: dict[str, Any] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)
    overlap: str = ""
    catch_up: str = ""
    window_s: float = 0.0
    jitter_s: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_firings: int | None = None
    firings: int = 0
    waiting: int = 0
    next_at: datetime | None = None
    next: tuple[datetime, ...] = ()
    paused_at: datetime | None = None
    pause_reason: str | None = None
    created_at: datetime
    created_by: str = ""
    updated_at: datetime | None = None
    links: dict[str, str] = Field(default_factory=dict)


class Firing(View):
    """What became of one firing of a schedule: its run, or why there is none."""

    at: datetime
    outcome: str
    run_id: str | None = None
    reason: str | None = None
    until: datetime | None = None
    triggered_by: str | None = None
    created_at: datetime


class McpCheck(View):
    """What the last look at an MCP server found."""

    ok: bool
    at: datetime | None = None
    ms: float = 0.0
    protocol: str | None = None
    server: str | None = None
    tools: int | None = None
    code: str | None = None
    error: str | None = None
    stderr: str | None = None


class McpServer(View):
    """An MCP server of the tenant."""

    id: str
    name: str
    transport: str
    command: list[str] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    effects: dict[str, str] = Field(default_factory=dict)
    timeout_s: float | None = None
    listed_digest: str | None = None
    listed_at: datetime | None = None
    check: McpCheck | None = None
    created_at: datetime | None = None
    created_by: str = ""
    updated_at: datetime | None = None


class McpTool(View):
    """A tool of an MCP server: what was accepted of it and what is listed now."""

    name: str
    tool: str
    state: str
    effect: str
    problem: str | None = None
    accepted: dict[str, Any] | None = None
    accepted_digest: str | None = None
    accepted_at: datetime | None = None
    accepted_by: str | None = None
    listed: dict[str, Any] | None = None
    listed_digest: str | None = None
    diff: list[str] = Field(default_factory=list)


class McpAccepted(View):
    """The names of tools that are accepted now and were not before."""

    accepted: list[str]


class Throttle(View):
    """A provider's limit that holds back all who share its scope."""

    scope: str
    provider: str = ""
    model: str = ""
    credential: str = ""
    until: datetime
    next_at: datetime | None = None
    interval_s: float = 0.0
    limit_per_s: float | None = None
    code: str = ""
    reason: str = ""
    hits: int = 0
    since: datetime | None = None
    updated_at: datetime | None = None
    waiting: int = 0


class Breaker(View):
    """What is known of a tool that failed lately: `open`, `half_open` or `closed`."""

    tool: str
    state: str
    failures: int = 0
    successes: int = 0
    opens: int = 0
    reason: str = ""
    opened_at: datetime | None = None
    until: datetime | None = None
    updated_at: datetime | None = None


class AuditEntry(View):
    """One change that somebody asked for."""

    id: str
    at: datetime
    actor: str
    action: str
    target: str
    request_id: str | None = None
    detail: dict[str, Any] = Field(default_factory=dict)


class Readiness(View):
    """Whether the server can do its work: `ready`, or `degraded` without Redis."""

    status: str
    postgres: str = ""
    redis: str = ""
