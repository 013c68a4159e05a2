"""`wait`: a durable timer. The worker is let go; the scheduler wakes the run when the time has
come.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool, ToolContext, WaitUntil
from harness_common.core.errors import Invalid
from harness_common.settings import Settings
from harness_worker.sdk import tool

_NAME = "wait"
_MAX_WAIT = timedelta(days=31)


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="read")
    async def wait(
        ctx: ToolContext,
        seconds: Annotated[
            float | None,
            Field(ge=0, le=_MAX_WAIT.total_seconds(), description="How long to wait."),
        ] = None,
        until: Annotated[
            datetime | None,
            Field(description="When to go on, such as 2024-05-31T08:00:00Z, with the offset."),
        ] = None,
    ) -> WaitUntil | str:
        """Pause this run for a time. Use it when something needs time to happen, such as before
        looking again at a slow process.

        Give either seconds or until. The wait costs nothing and survives restarts; the run goes on
        by itself afterwards.

        Returns a short text once the time has come; a time in the past returns at once.
        Limits: 31 days from now.
        """
        if ctx.resumed is not None:
            return f"Waited until {_text(ctx.resumed)}."
        at = _target(ctx.now, seconds, until)
        return WaitUntil(at) if at > ctx.now else f"{_text(at)} has already passed; did not wait."

    return [wait]


def _target(now: datetime, seconds: float | None, until: datetime | None) -> datetime:
    if (seconds is None) == (until is None):
        raise _refused("give either seconds or until, exactly one of them")
    if seconds is not None:
        return now + timedelta(seconds=seconds)
    assert until is not None
    if until.tzinfo is None:
        raise _refused("until has no offset; write it like 2024-05-31T08:00:00Z")
    if until - now > _MAX_WAIT:
        raise _refused(f"until is more than {_MAX_WAIT.days} days away; choose an earlier time")
    return until


def _refused(cause: str) -> Invalid:
    return Invalid(f"Tool {_NAME!r} did not wait: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
