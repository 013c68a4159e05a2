"""The ids of the Responses face. They hold what they lead to: nothing has to be looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from harness_common.core.errors import Invalid, NotFound

_RESPONSE: Final = re.compile(r"resp_([0-9a-f]{32})(?:_([0-9]{1,9}))?")
_CALL: Final = re.compile(r"call_([0-9a-f]{32})_([0-9]{1,9})_([0-9]{1,9})")
_MODEL: Final = re.compile(r"(?:agent:)?([a-z0-9][a-z0-9_.-]{0,63})(?:@([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Ref:
    """A response: what happened in a run after its event `after`."""

    run_id: UUID
    after: int = 0

    def __str__(self) -> str:
        tail = f"_{self.after}" if self.after else ""
        return f"resp_{self.run_id.hex}{tail}"


@dataclass(frozen=True, slots=True)
class CallRef:
    """A call that the client is to carry out."""

    run_id: UUID
    step: int
    index: int

    def __str__(self) -> str:
        return f"call_{self.run_id.hex}_{self.step}_{self.index}"

    @property
    def call(self) -> str:
        """Name the call within its run."""
        return f"{self.step}.{self.index}"


def read_ref(text: str) -> Ref:
    """Read the id of a response; raises `NotFound`."""
    found = _RESPONSE.fullmatch(text)
    if found is None:
        raise NotFound(f"no response {text[:80]!r}", field="response_id", value=text[:80])
    return Ref(UUID(hex=found[1]), int(found[2] or 0))


def read_call(text: str) -> CallRef | None:
    """Read the id of a call; None when it is not one of ours."""
    found = _CALL.fullmatch(text)
    return CallRef(UUID(hex=found[1]), int(found[2]), int(found[3])) if found else None


def read_model(text: str) -> tuple[str, int | None]:
    """Read `agent:name@version`, `name@version` or `name`; raises `Invalid`."""
    found = _MODEL.fullmatch(text)
    if found is None:
        raise Invalid(
            f"{text[:80]!r} names no agent; write agent:NAME@VERSION or the name of an agent",
            field="model",
            value=text[:80],
        )
    return found[1], int(found[2]) if found[2] else None
