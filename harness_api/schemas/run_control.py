"""What people ask of runs, on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_api.schemas.base import Input
from harness_api.schemas.runs import CallName, LongText
from harness_common.contracts.agent import ToolName


class RunCancel(Input):
    """Why a run is stopped."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class RunRetry(Input):
    """Where the new run goes on: by default from the last checkpoint."""

    from_step: Annotated[
        int | None, Field(ge=1, lt=2**31, description="The first step to do anew.")
    ] = None
    if_not_retried: Annotated[
        bool, Field(description="Refuse with 409 when a retry of the run was made before.")
    ] = False


class RunPause(Input):
    """Why a run is paused."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class RunInput(Input):
    """The answer to a question of a run."""

    text: LongText
    call: Annotated[
        CallName | None,
        Field(description="Which question (`step.index`); needed when several are open."),
    ] = None


class RunMessage(Input):
    """A message for a run under way."""

    text: LongText


class RunFork(Input):
    """Where a new run begins, and what is different in it."""

    step: Annotated[
        int | None,
        Field(ge=0, lt=2**31, description="Committed steps to keep; by default all of them."),
    ] = None
    input: LongText | None = None
    agent_version: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    tools: Annotated[tuple[ToolName, ...], Field(strict=False, max_length=500)] | None = None
    dry_run: bool = False
    """Model and tools are answered from the record; nothing outside is called."""
