"""A run that is handed from one agent to another: it goes on with the same conversation, under the
other agent's pinned version, from the next step on.

Which agent acts is a part of the memo, so that every checkpoint, fork and replay knows it. The
tools are named here: `transfer_to_NAME` hands the run over, `agent__NAME` lets the other work in a
run of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus

TRANSFER: Final = "transfer_to_"
AGENT_TOOL: Final = "agent__"
ACTING: Final = "acting"
"""The key of `RunState.memo`: the agent that the run was handed to last, and how often it was."""


def is_agent_tool(name: str) -> bool:
    """Tell whether a tool is another agent."""
    return name.startswith((AGENT_TOOL, TRANSFER))


def agent_of(name: str) -> str:
    """Return the agent that such a tool is."""
    return name.removeprefix(AGENT_TOOL if name.startswith(AGENT_TOOL) else TRANSFER)


@dataclass(frozen=True, slots=True)
class Acting:
    """The agent under which a run goes on, and how many hand-offs led there."""

    name: str
    version: int
    hops: int = 0


def acting(memo: Mapping[str, Json], name: str, version: int) -> Acting:
    """Return who acts: the agent that the run began with (`name`, `version`), or a later one."""
    found = memo.get(ACTING)
    return Acting(*found) if found else Acting(name, version)


def handed_over(
    now: Acting, handoffs: Collection[str], outcomes: Sequence[CallOutcome], step: int
) -> Guidance:
    """Hand the run over when a transfer to one of `handoffs` worked: the first one counts."""
    for outcome in outcomes:
        name = outcome.name.removeprefix(TRANSFER)
        is_transfer = outcome.name.startswith(TRANSFER) and name in handoffs
        if not is_transfer or outcome.status is not CallStatus.SUCCEEDED:
            continue
        assert outcome.tool_version is not None
        version = int(outcome.tool_version)
        event = Event(
            ev.RUN_HANDED_OFF,
            {
                "from": f"{now.name}@{now.version}",
                "to": f"{name}@{version}",
                "hop": now.hops + 1,
                "call": f"{step}.{outcome.index}",
            },
            step,
        )
        return Guidance((), (event,), {ACTING: [name, version, now.hops + 1]})
    return NOTHING
