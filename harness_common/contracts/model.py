"""What the model step needs of a language model: one streamed sampling, typed errors, usage,
capabilities.

Implementations live in `harness_worker.models`, one file each, and never retry: only the scheduler
waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from harness_common.core.message import Json, Message
from harness_common.core.throttle import Rate


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `input_tokens` is the total input, cached parts included."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    estimated: bool = False
    """True when the provider reported nothing and we counted ourselves."""
    cache_write_tokens: int = 0
    """The part of the input that the provider wrote to its cache, where it charges for that."""
    cache_write_1h_tokens: int = 0
    """The part of those that it keeps for an hour, at another price."""


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: Json


_SCRIPT_OPTIONS: Final = frozenset({"script", "attempt"})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One sampling over one frozen context."""

    model: str
    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolDef] = ()
    max_tokens: int = 1024
    temperature: float | None = None
    """None leaves the provider's default; omitted when `Capabilities.temperature` is False."""
    first_token_timeout_s: float = 30.0
    total_timeout_s: float = 300.0
    options: Mapping[str, Json] = field(default_factory=dict)
    """Agent-level model options that only this provider understands."""
    answer_schema: Json = None
    """When set, the whole answer has to be a JSON object of this schema. A provider with a JSON
    mode says so to the server; what comes back is checked in any case.
    """
    step: int = 0
    """Number of the step that asks (1 for the first): which declared answer the scripted model
    gives.
    """
    tool_choice: str | None = None
    """`auto`, `required`, `none` or the name of the tool that must be called; None leaves it to the
    provider. Only with tools.
    """

    def own_options(self) -> dict[str, Json]:
        """Return the options that may go to a server: not those of the scripted model, nor what is
        null.
        """
        return {k: v for k, v in self.options.items() if v is not None and k not in _SCRIPT_OPTIONS}


Finish = Literal["stop", "tool_calls", "length", "refusal", "pause"]
"""`pause`: the provider ended a long turn and wants to be called again (the run takes another model
step).
"""


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A whole answer. Decide from the tool uses in `message`, not from `finish`."""

    message: Message
    usage: Usage
    finish: Finish
    model: str
    """The model that answered, as the provider names it."""
    provider_request_id: str | None = None
    cost_usd: float | None = None
    """From the price table; None when the model has no known price."""
    first_token_ms: float | None = None
    rate: Rate | None = None
    """What the provider's headers say about its limit on requests."""


ToolChoiceKind = Literal["native", "schema", "none"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model accepts; requests are built from this, never from a guess."""

    tools: bool = True
    streaming: bool = True
    temperature: bool = True
    """False: every sampling parameter is left out, because the model answers them with 400."""
    json_mode: bool = False
    tool_choice: ToolChoiceKind = "native"
    """How a tool is forced: by the provider's own field; by a JSON schema for the answer, where the
    server ignores that field; or not at all, where it is answered with 400.
    """
    reasoning: bool = False
    """True: the model thinks before it answers and can hand on what it thought, encrypted."""
    context_window_tokens: int = 128_000
    max_output_tokens: int | None = None
    """The longest answer the model gives; None when nobody knows."""
    max_tokens_field: str = ""
    """The name that a Chat Completions server has for the limit of an answer; empty: by its
    address.
    """
    scripted: bool = False
    """True for the scripted model: everything that shows its answers labels them so."""

    def output_tokens(self, wanted: int) -> int:
        """Return the tokens that an answer may have when `wanted` are asked for."""
        return min(wanted, self.max_output_tokens) if self.max_output_tokens else wanted


OnDelta = Callable[[str], Awaitable[None]]
"""Receives each piece of answer text as it arrives; not durable."""


class Model(Protocol):
    """One configured model endpoint."""

    provider: str
    capabilities: Capabilities
    scope: str
    """What a limit of this endpoint applies to, for all who share it: `Limited.scope` says the
    same.
    """

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Sample one answer.

        Raises `Limited` (429, 529; with Retry-After and scope), `Transient` (connection, 5xx, cut
        stream, timeouts), `Permanent` (refused, bad request, unknown model, quota used up, context
        too long). Cancelling the awaiting task closes the stream.
        """
        ...

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request, without network access."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
