"""Effects whose outcome is unknown, and what a person says of them, on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from harness_api.schemas.base import Input, Output, Time
from harness_api.schemas.runs import ShownStatus
from harness_common.core.message import Json


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank: say how it is known")
    return text


class EffectResolve(Input):
    """What became of an unknown effect, and how that is known."""

    outcome: Literal["succeeded", "failed", "run_again"]
    reason: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_said)]
    result: Annotated[
        str | None,
        Field(max_length=100_000, description="What the model is told; by default the reason."),
    ] = None


class EffectView(Output):
    """A tool call with what a person needs to decide about it."""

    run_id: str
    call: str
    tool: str
    arguments: Json
    effect: str | None
    status: str
    attempts: int
    authorised: int
    result: str | None
    error_type: str | None
    idempotency_key: str
    started_at: Time | None
    finished_at: Time | None
    worker: str | None
    """The process that started it last."""
    why: str | None
    """Why nobody knows what became of it."""
    evidence: dict[str, Any] | None
    resolution: dict[str, Any] | None
    """What a person said: `outcome`, `by`, `at`, `reason`, and what was known before."""
    agent: str
    acting: str
    """The agent under which the run goes on: another than `agent` after a hand-off."""
    run_status: ShownStatus
