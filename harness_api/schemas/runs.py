"""Runs, and what happened in them, on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from harness_api.paging import ID_PATTERN
from harness_api.schemas.base import Input, InputTime, Output, Time
from harness_common.contracts.names import Name, SkillRef
from harness_common.contracts.output import check_output_schema
from harness_common.core.errors import Invalid
from harness_common.core.ids import decode
from harness_common.core.message import Json
from harness_common.core.stop_reasons import StopReason
from harness_common.store.run_reads import RunFilter

SessionId = Annotated[str, Field(pattern=r"^sess_[0-9a-f]{32}$", examples=["sess_" + "0" * 32])]
Tags = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
]
ShownStatus = Literal[
    "queued",
    "running",
    "cancelling",
    "waiting_approval",
    "waiting_input",
    "waiting_tool",
    "waiting_children",
    "delayed",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


LongText = Annotated[str, Field(min_length=1, max_length=1_000_000), AfterValidator(_not_blank)]
EndReason = Annotated[str, WithJsonSchema({"type": "string", "enum": [str(r) for r in StopReason]})]
"""Why a run ended. Answers hold whatever is stored: an older or newer worker may know others."""
RunIdText = Annotated[str, Field(pattern=r"^run_[0-9a-f]{32}$")]
CallName = Annotated[str, Field(pattern=r"^[0-9]{1,9}[.][0-9]{1,9}$", examples=["2.0"])]
ConcurrencyKey = Annotated[
    str,
    Field(
        pattern=r"^[!-~]([ -~]{0,198}[!-~])?$",
        description="Runs of one key take turns; 1 to 200 printable characters.",
    ),
]


class RunAsked(Input):
    """A run that is wanted: an agent and what it is asked. Limits may only narrow the agent's."""

    agent: Name
    input: LongText
    agent_version: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    session_id: SessionId | None = None
    title: Annotated[str, Field(max_length=500)] | None = None
    user_id: Annotated[str, Field(max_length=200)] | None = None
    tags: Tags = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=0, le=9, description="0 goes first.")] = 6
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    concurrency_key: ConcurrencyKey | None = None
    concurrency_max: Annotated[
        int, Field(ge=1, le=10_000, description="Runs of the key that may run at once.")
    ] = 1
    skills: Annotated[
        list[SkillRef],
        Field(max_length=20, description="Skills to work with, beside those of the agent."),
    ] = Field(default_factory=list)

    def check_together(self) -> None:
        """Raise `Invalid` when fields do not go together."""
        if "concurrency_max" in self.model_fields_set and self.concurrency_key is None:
            raise Invalid(
                "concurrency_max needs a concurrency_key: it counts the runs of that key",
                field="concurrency_key",
                value=None,
            )


class RunCreate(RunAsked):
    """A run to start now."""

    on_busy: Annotated[
        Literal["reject", "enqueue", "interrupt", "steer"],
        Field(description="What to do while the session's last run is still going."),
    ] = "reject"
    output_schema: Annotated[
        dict[str, Any] | None,
        Field(description="JSON Schema of the run's output, in place of the agent's."),
    ] = None

    def check_together(self) -> None:
        """Raise `Invalid` when fields do not go together."""
        super().check_together()
        check_output_schema(self.output_schema)
        if self.on_busy != "reject" and self.session_id is None:
            raise Invalid(
                f"on_busy {self.on_busy!r} needs a session_id: without one the session is new",
                field="session_id",
                value=None,
            )


class RunQuery(BaseModel):
    """Which runs to list; all that is given must hold."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[list[ShownStatus], Field(max_length=12)] = Field(default_factory=list)
    agent: Name | None = None
    session_id: SessionId | None = None
    tag: Annotated[
        list[Annotated[str, Field(max_length=330, pattern=r"^[^:]+:")]],
        Field(max_length=8, description="`name:value`; all must match."),
    ] = Field(default_factory=list)
    created_after: InputTime | None = None
    created_before: InputTime | None = None
    error_code: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    stop_reason: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    parent: RunIdText | None = None
    text: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=200,
            description="Words of the input or the agent's name. A page looks at 5,000 runs: it "
            "may be short and still have a `next_cursor`.",
        ),
    ] = None
    retried: Annotated[bool | None, Field(description="Whether a retry of the run was made.")] = (
        None
    )
    child: Annotated[bool | None, Field(description="Whether another run has started it.")] = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None

    def wanted(self) -> RunFilter:
        """Return the filter as the store knows it."""
        return RunFilter(
            statuses=self.status,
            agent=self.agent,
            session_id=decode("session", self.session_id) if self.session_id else None,
            tags=dict(tag.split(":", 1) for tag in self.tag),
            created_after=self.created_after,
            created_before=self.created_before,
            error_code=self.error_code,
            stop_reason=self.stop_reason,
            parent=decode("run", self.parent) if self.parent else None,
            retried=self.retried,
            child=self.child,
            text=self.text,
        )


class AgentRef(Output):
    """The version of an agent that a run is pinned to."""

    name: str
    version: int


class Usage(Output):
    """What a run has used."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class RunLimits(Output):
    """What a run may use; null is no cap."""

    max_turns: int
    max_tokens: int | None
    max_cost_usd: float | None
    deadline: Time | None


class ForkedFrom(Output):
    """Where a retried or forked run came from."""

    run_id: str
    step: int


class ParentRef(Output):
    """The run and the call that a child works for."""

    run_id: str
    call: str


class RunLinks(Output):
    """Where to read on."""

    self: str
    events: str
    steps: str
    session: str
    lineage: str


class RunView(Output):
    """A run as it is now."""

    id: str
    session_id: str
    agent: AgentRef
    acting: AgentRef
    """The agent under whose version the next step runs: another one after a hand-off."""
    handoffs: int
    """How often the run was handed to another agent."""
    status: ShownStatus
    phase: str
    turn_state: str
    step: int
    turn: int
    next_kind: str
    attempt: int
    failures: int
    input: str
    output: str | None
    output_json: Json = None
    """The output parsed, when an `output_schema` said that it is JSON."""
    stop_reason: EndReason | None
    error: Json
    usage: Usage
    limits: RunLimits
    tags: dict[str, str]
    priority: int
    queue: str
    created_by: str
    created_at: Time
    queued_at: Time
    started_at: Time | None
    finished_at: Time | None
    not_before: Time | None
    cancel_requested: bool
    pause_requested: bool
    waiting: dict[str, Any] | None
    """What it waits for: `for`, and the calls with their questions, choices and children."""
    held_for: str | None
    """What keeps a queued run from being admitted: `session` or `key`."""
    concurrency_key: str | None
    parent: ParentRef | None
    depth: int
    forked_from: ForkedFrom | None
    overrides: dict[str, Any]
    dry_run: bool
    deaths: int
    suspect: bool
    """Processes that held it died: it runs alone."""
    worker: str | None
    trace_id: str
    scripted: bool
    links: RunLinks


class EventView(Output):
    """One entry of a run's event log; `seq` counts from 1 without a gap."""

    seq: int
    type: str
    step: int | None
    at: Time
    payload: dict[str, Any]


class StepTokens(Output):
    """Tokens of one model answer."""

    input: int
    output: int


class StepTool(Output):
    """A tool call as a step shows it."""

    call: str
    tool: str
    status: str
    ms: float | None
    error_type: str | None


class StepCompaction(Output):
    """What a compaction did: how, for how many messages, and the tokens of the conversation."""

    how: str
    covers: int
    tokens_before: int
    tokens_after: int


class StepView(Output):
    """One committed step: what it was, who did it, how long it took and what it cost."""

    step: int
    kind: str
    attempt: int
    fence: int
    worker: str | None
    started_at: Time | None
    finished_at: Time
    ms: float | None
    model: str | None
    finish: str | None
    first_token_ms: float | None
    tokens: StepTokens
    cost_usd: float | None
    scripted: bool
    tools: list[StepTool]
    compaction: StepCompaction | None


class AttemptView(Output):
    """An attempt at a step that failed, or that a limit put off, and why."""

    seq: int
    step: int
    attempt: int
    """1 for the first try of the step."""
    kind: str
    category: str
    code: str
    message: str
    retry_after_s: float | None
    scope: str | None
    at: Time


class ToolCallView(Output):
    """One entry of the ledger."""

    call: str
    step: int
    index: int
    tool: str
    arguments: Json
    effect: str | None
    status: str
    attempt: int
    result: str | None
    error_type: str | None
    trust: str | None
    artifacts: list[str]
    ms: float | None
    cost_usd: float
    idempotency_key: str
    started_at: Time | None
    finished_at: Time | None
    tool_version: str | None
    ran_arguments: Json
    """What was run, when a person changed the arguments."""
    failed_attempts: list[dict[str, Any]]
    """The attempts before the last: `attempt`, `error_type`, `why`, `ms`, `at`."""
    duplicate_of: str | None
    """The equal call of the same answer whose result this is."""
    cached_from: str | None
    """The earlier call whose result was used again."""
    served_by: str | None
    """The fallback tool that was called in its place."""


class CheckpointView(Output):
    """A committed step as a checkpoint: what changed, and who wrote it."""

    step: int
    version: int
    kind: str
    delta: dict[str, Any]
    has_snapshot: bool
    worker: str | None
    fence: int
    attempt: int
    created_at: Time


class MessageView(Output):
    """One message of a run's conversation."""

    n: int
    step: int
    role: str
    trust: str
    content: list[dict[str, Any]]


class TreeCall(Output):
    """A tool call in the tree."""

    call: str
    tool: str
    status: str


class TreeStep(Output):
    """A step in the tree."""

    step: int
    kind: str
    tool_calls: list[TreeCall]


class TreeTurn(Output):
    """A model answer and what it led to."""

    turn: int
    steps: list[TreeStep]


class RunTree(Output):
    """Session, turns, steps and tool calls of a run; `next_cursor` leads to the steps after these,
    null when there are none.
    """

    session: str
    run: str
    turns: list[TreeTurn]
    next_cursor: str | None = None
