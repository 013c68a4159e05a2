"""What a step may return: the values by which a step tells the run what happened.

A step never changes a run. It returns one of these, and `core.rules.advance` decides what follows.
Step kinds are text (`model`, `tools`, …) so that a new kind is a file in `harness_worker/steps` and
a registry line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from harness_common.core.budget import FREE, Spent
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.message import Json, Message
from harness_common.core.tool_call import CallStatus

MODEL: Final = "model"
TOOLS: Final = "tools"
COMPACT: Final = "compact"
NODE: Final = "node"
"""One step of a graph run: all calls of the nodes whose turn has come."""
WITHOUT_CALLS: Final = frozenset({MODEL, COMPACT})
"""Step kinds that make no calls; those of all others stand in the ledger. `claim.sql` and
`commit.sql` name them too.
"""


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """One whole answer of the model."""

    message: Message
    finish: Literal["stop", "tool_calls", "length", "refusal", "pause"]
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_usd: float = 0.0
    priced: bool = True
    """False when the model is in no price table, so that 0 USD is not read as free."""
    scripted: bool = False
    first_token_ms: float | None = None
    guidance: Guidance = NOTHING
    cache_write_tokens: int = 0
    """The part of the input that the provider wrote to its cache, where it charges for that."""
    notes: tuple[Message, ...] = ()
    """What was put at the end of the conversation for this answer: messages before it."""
    context: Json = None
    """What the prompt was made of (`core.context_record`); part of the event."""
    session_summary: str | None = None
    """What the session is to remember if the run ends here, less than 2 KB."""
    restarts: int = 0
    """How many models before the one that answered had begun to show an answer."""


@dataclass(frozen=True, slots=True)
class ContextFull:
    """The prompt is too long to be sent, or was refused as too long: a compaction comes first. The
    step is not over.
    """

    why: Literal["limit", "provider"]
    tokens: int
    """Of the prompt, as estimated and calibrated."""
    limit: int
    fixed: int
    """What of it no compaction makes smaller."""
    spent: Spent = FREE
    """What judges of the input have cost."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Older messages have a summary in their place, or nothing could be gained."""

    how: str
    """`summarised`, `extracted`, `trimmed` or `nothing`."""
    message: Message | None = None
    """The summary; None when nothing was gained."""
    kept_from: int = 1
    history_from: str | None = None
    covers: int = 0
    """How many messages the summary stands for, with those of its predecessor."""
    tokens_before: int = 0
    tokens_after: int = 0
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    priced: bool = True
    note: str = ""
    """Why it was done in another way than the agent wants."""
    session_summary: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """What one call of the step waits for."""

    index: int
    kind: Literal["time", "input", "child", "approval"]
    until: datetime | None = None
    """When it is over at the latest: the time waited for, or the expiry of a question."""
    about: Mapping[str, Json] = field(default_factory=dict)
    """The question and its choices; the child's id and agent; the approval, its tool and digest."""
    record: Mapping[str, Json] | None = None
    """What is to be stored of an approval that is asked for now; None when it was before."""

    def to_json(self) -> Json:
        """Write the wait as part of `RunState.waiting`."""
        return {
            "index": self.index,
            "until": self.until.isoformat() if self.until else None,
            **self.about,
        }


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How one tool call of a tools step ended. Identity is (run, step, index)."""

    index: int
    tool_use_id: str
    name: str
    status: CallStatus
    content: str
    error_type: str | None = None
    trust: Literal["trusted", "untrusted"] = "trusted"
    duration_ms: float = 0.0
    cost_usd: float = 0.0
    artifacts: tuple[str, ...] = ()
    attempt: int = 1
    effect: str | None = None
    tool_version: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    """Tokens that the call cost its run: those of a child."""
    resume_at: datetime | None = None
    """Set while the call waits for a time or, at most until then, for an answer."""
    wait: Wait | None = None
    """Set while the call waits; its status is `running` then, or `awaiting_approval`."""
    marks: tuple[str, ...] = ()
    """What the run has touched by this call or before it (`core.taint`)."""
    policy: Json = None
    """The decision about the call, as the ledger keeps it (`Decision.to_json`)."""
    answer: str | None = None
    """What a person answered to a call that is to be made again with it."""
    recorded: bool = False
    """True when the ledger already held this result (a `write`, or a crash before the step's
    commit).
    """
    fingerprint: str | None = None
    """Who asked for what: principal, tool, version and arguments as run. None if nothing
    started.
    """
    ran_arguments: Json = None
    """What was run, when a person changed what was asked for."""
    failed_attempts: tuple[Json, ...] = ()
    """The attempts before the last, each with its error and when."""
    duplicate_of: str | None = None
    """The equal call (`step.index`) of the same answer whose result this is."""
    cached_from: str | None = None
    """The earlier call (`run_….step.index`) whose result was used again."""
    cached_until: datetime | None = None
    """Until when later calls of the session may use this result."""
    served_by: str | None = None
    """The fallback tool that was called in place of the one asked for."""
    restarts: int = 0
    """Of a model node: how many models before the one that answered had begun to show an answer."""


@dataclass(frozen=True, slots=True)
class ToolsDone:
    """Every call of one answer has ended."""

    outcomes: tuple[CallOutcome, ...]
    guidance: Guidance = NOTHING


@dataclass(frozen=True, slots=True)
class ToolsWaiting:
    """Some calls wait; finished calls of the same answer are kept in the ledger."""

    outcomes: tuple[CallOutcome, ...]
    spent: Spent = FREE
    """What answers of models have cost that the step asks for anew when it goes on."""

    @property
    def waits(self) -> tuple[Wait, ...]:
        """List what is waited for."""
        return tuple(o.wait for o in self.outcomes if o.wait is not None)


@dataclass(frozen=True, slots=True)
class ToolsUnknown:
    """An intent was found without a result: whether the effect happened is for a person to say."""

    outcomes: tuple[CallOutcome, ...]
    unknown: tuple[int, ...]
    spent: Spent = FREE


@dataclass(frozen=True, slots=True)
class StepCancelled:
    """The owner stopped at a safe point because a cancel was asked for."""

    outcomes: tuple[CallOutcome, ...] = ()
    spent: Spent = FREE
    """What answers of models have cost that are on record nowhere."""
    kept: Spent = FREE
    """What those have cost that are: whoever does the step anew counts them, and a run that ends
    here does it now.
    """


@dataclass(frozen=True, slots=True)
class NodesDone:
    """Every call of a graph's step has ended, and what follows from it is decided."""

    outcomes: tuple[CallOutcome, ...]
    messages: tuple[Message, ...]
    """The results, if there are any, and the calls of the next step or the last words."""
    events: tuple[Event, ...] = ()
    calls: int = 0
    """How many calls the next step has; none ends the run."""
    sampled: int = 0
    """Model answers among the outcomes."""
    error: Json = None
    """Why the run fails."""
    output: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignStepped:
    """One turn of an object of another framework (a superstep of a graph) is over and is saved."""

    kind: str
    memo: Mapping[str, Json]
    """Where its own state is, for the next step."""
    outcomes: tuple[CallOutcome, ...] = ()
    """Calls that it made through the ledger, all of them ended."""
    messages: tuple[Message, ...] = ()
    output: str | None = None
    """The run's output; None when there is more to do."""
    told: Mapping[str, Json] = field(default_factory=dict)
    """For the step's event."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Of answers of our own models; what others cost nobody knows."""


StepResult = (
    ModelAnswered
    | ToolsDone
    | ToolsWaiting
    | ToolsUnknown
    | StepCancelled
    | ContextFull
    | Compacted
    | NodesDone
    | ForeignStepped
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt at a step failed, as a value."""

    category: Literal["limited", "transient", "permanent"]
    code: str
    message: str
    retry_after_s: float | None = None
    scope: str = ""
    detail: Json = field(default=None)
    permit: Json = field(default=None)
    """The run's slot in a paced release, kept in its memo; `retry_after_s` is exact then."""

    def to_json(self) -> Json:
        """Write the failure as the `error` of a run."""
        out: dict[str, Json] = {
            "category": self.category,
            "code": self.code,
            "message": self.message,
        }
        if self.retry_after_s is not None:
            out["retry_after_s"] = self.retry_after_s
        if self.scope:
            out["scope"] = self.scope
        if self.detail:
            out["detail"] = self.detail
        return out
