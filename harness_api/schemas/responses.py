"""Requests of the Responses face. Fields that would change nothing are taken and ignored; those
that would be broken promises are refused by name (docs/openai-client.md lists both).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness_common.contracts.request_options import MAX_TOOLS

IGNORED: Final = frozenset(
    {
        "include",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "service_tier",
        "stream_options",
    }
)
"""Said by clients on their own, or wishes about the model's inside: the agent decides them."""
REFUSED: Final = {
    "max_tool_calls": "give the agent `max_turns`, or use POST /v1/runs",
    "prompt": "the agent holds the prompt; name it in `model`",
    "top_logprobs": "runs keep no log probabilities",
    "top_p": "set it in the agent's `model_options`",
}


class FunctionTool(BaseModel):
    """A function that the client carries out."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(BaseModel):
    """What the answer looks like: text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class TextConfig(BaseModel):
    """Wishes about the text."""

    model_config = ConfigDict(extra="forbid")

    format: TextFormat | None = None
    verbosity: str | None = None


class ConversationRef(BaseModel):
    """A session by its id."""

    model_config = ConfigDict(extra="forbid")

    id: str


class ResponseCreate(BaseModel):
    """A run to start, or an answer to one that waits for its client."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    input: str | list[dict[str, Any]] = Field(
        default="", description="Text, or items: messages and `function_call_output`."
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    background: bool = False
    stream: bool = False
    store: Literal[True] = True
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
    ] = Field(default_factory=dict)
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["auto"] = "auto"
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    user: Annotated[str, Field(max_length=200)] | None = None
    safety_identifier: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:  # noqa: ANN401 - what the client sent
        """Leave out what is null or ignored, and say why a field is refused."""
        if not isinstance(data, dict):
            return data
        for name, advice in REFUSED.items():
            if data.get(name) is not None:
                raise ValueError(f"{name} is not supported: {advice}")
        return {k: v for k, v in data.items() if v is not None and k not in IGNORED}
