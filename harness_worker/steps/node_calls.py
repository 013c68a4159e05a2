"""The calls of one step of a graph: side by side, each bounded by its node, none twice.

Whatever ends is kept at once, also when another call has to be put off or the process dies: the
next owner finds it in the ledger.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from harness_common.core.approval import told_edited
from harness_common.core.budget import Spent
from harness_common.core.errors import HarnessError, Limited, Transient
from harness_common.core.graph import MODEL_CALL, Graph
from harness_common.core.graph_log import Asked
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.steps.node_model import ModelCalls
from harness_worker.tools.bulk import cut_of
from harness_worker.tools.call import PendingCall
from harness_worker.tools.keeper import Keeper
from harness_worker.tools.runner import ToolRunner

_NOTES: Final = re.compile(
    r"(?:\n\[(?:from the fallback tool |cached_from: |artifacts: )[^\n]*\])+\Z"
)
_HEAD_CHARS: Final = 1_000


class GraphCalls:
    """The calls of one step, and what came of them so far."""

    def __init__(
        self, runner: ToolRunner, models: ModelCalls, graph: Graph, asked: Sequence[Asked]
    ) -> None:
        self._runner, self._models, self._asked = runner, models, asked
        self._keeper = Keeper(runner.scope)
        self._slots = asyncio.Semaphore(runner.scope.settings.tool.parallel_reads)
        self._of_node = {
            one.node: asyncio.Semaphore(graph.nodes[one.node].parallel)
            for one in asked
            if one.node in graph.nodes
        }
        self._outcomes: dict[int, CallOutcome] = {}
        self._put_off: HarnessError | None = None

    async def run(
        self, calls: Sequence[PendingCall], not_before: dict[int, datetime]
    ) -> list[CallOutcome]:
        """Bring every call to an end or to a wait; returns the outcomes in the order asked.

        Raises what puts the step off (`Limited`, `Transient`), after the calls under way have ended
        and are kept; and what takes the run away, at once.
        """
        tasks = {call.index: asyncio.ensure_future(self._one(call, not_before)) for call in calls}
        try:
            await asyncio.gather(*tasks.values())
        except BaseException as error:
            # A worker that stops, or a neighbour that fails, awaits what was begun; a cancel does
            # not.
            awaited = () if isinstance(error, asyncio.CancelledError) else self._runner.writing
            for index, task in tasks.items():
                if index not in awaited:
                    task.cancel()
            try:
                await asyncio.gather(*tasks.values(), return_exceptions=True)
            finally:
                await self._keep()
            raise
        if self._put_off is not None:
            await self._keep()
            raise self._put_off
        await self._keeper.close()
        return [self._outcomes[call.index] for call in calls]

    async def _keep(self) -> None:
        """Write down what has ended, since the step does not, and who pays for it."""
        await self._keeper.flush()
        for index in self._keeper.kept:
            one = self._outcomes[index]
            if one.name == MODEL_CALL:
                spent = Spent(one.input_tokens, one.output_tokens, one.cost_usd)
                self._runner.scope.held.keep(spent)

    async def _one(self, call: PendingCall, not_before: dict[int, datetime]) -> None:
        at = not_before.get(call.index)
        if at is not None and call.status is CallStatus.PROPOSED and at > self._now():
            self._outcomes[call.index] = _later(call, at)
            return
        async with self._of_node.get(self._asked[call.index].node, self._slots), self._slots:
            if self._put_off is not None:
                return
            try:
                outcome = await self._outcome(call)
            except (Limited, Transient) as error:
                self._put_off = error
                return
        self._outcomes[call.index] = outcome
        if outcome.status in ENDED:
            self._keeper.add(outcome)

    def _now(self) -> datetime:
        return self._runner.scope.clock()

    async def _outcome(self, call: PendingCall) -> CallOutcome:
        if call.name == MODEL_CALL:
            return await self._models.run(call)
        return await self._runner.run(call)


def _later(call: PendingCall, at: datetime) -> CallOutcome:
    """Let a call wait that failed before and is to be made again. Its row stays as it is: nothing
    was begun, and nothing that policy says of it is settled.
    """
    wait = Wait(call.index, "time", at)
    return CallOutcome(
        call.index, call.tool_use_id, call.name, CallStatus.PROPOSED, "", wait=wait, recorded=True
    )


def value_of(outcome: CallOutcome) -> CallOutcome:
    """Return an outcome with what the tool gave alone: what the runner tells a model beside it is
    no part of the value. A result that was too large is told as its artifact.
    """
    text = outcome.content
    if outcome.ran_arguments is not None:
        text = text.removeprefix(told_edited(outcome.ran_arguments))
    if outcome.served_by or outcome.cached_from or outcome.artifacts:
        text = _NOTES.sub("", text)
    if (cut := cut_of(text)) is not None and cut["artifact"] in outcome.artifacts:
        text = json.dumps({**cut, "head": cut["head"][:_HEAD_CHARS]}, ensure_ascii=False)
    return outcome if text == outcome.content else replace(outcome, content=text)
