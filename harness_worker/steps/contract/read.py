"""What came of reading an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness_common.contracts.model import ChatResult
from harness_common.contracts.repair.log import Repair
from harness_common.core import events as ev
from harness_common.core.doubt import CONTRACT
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.message import Block, Json, ToolUse
from harness_worker.steps.contract.terms import Terms


@dataclass(frozen=True, slots=True)
class Read:
    """An answer as it was read, what follows, and all repairs that this took."""

    answer: ChatResult
    guidance: Guidance = NOTHING
    repairs: tuple[Repair, ...] = ()


@dataclass(slots=True)
class Calls:
    """The calls of an answer in the making: repaired, put on record, doubted."""

    terms: Terms
    uses: list[ToolUse] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    doubts: dict[str, Json] = field(default_factory=dict)

    def doubt(self, index: int, name: str, why: str) -> None:
        """Put on record that the model is not sure, and let a person confirm the call if the agent
        says so.
        """
        writes = name in self.terms.writes
        confirm = self.terms.spec.confirm == "all" or (
            self.terms.spec.confirm == "writes" and writes
        )
        if confirm:
            self.doubts[str(index)] = why
        # The call gets its place in the step after this one.
        about = {"level": 1, "call": f"{self.terms.step + 1}.{index}", "tool": name}
        told = about | {"why": why, "confirm": confirm}
        self.events.append(Event(ev.ANSWER_DOUBTED, told, self.terms.step))

    def read(self, answer: ChatResult, beside: Sequence[Block]) -> Read:
        """Return the answer with these calls."""
        message = replace(answer.message, content=(*beside, *self.uses))
        done = replace(answer, message=message, finish="tool_calls")
        memo: dict[str, Json] = {}
        if self.doubts:
            memo = {CONTRACT: {"doubt": self.doubts}}
        elif self.terms.memo is not None:
            memo = {CONTRACT: None}
        guidance = Guidance(events=tuple(self.events), memo=memo)
        return Read(done, guidance, tuple(self.repairs))
