"""Reading an answer by its contract. Called by the model step, before its guards."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import structlog

from harness_common.contracts.action import hedged
from harness_common.contracts.model import ChatResult
from harness_common.contracts.repair.log import counts
from harness_common.core.doubt import CONTRACT
from harness_common.core.errors import Transient
from harness_common.core.guidance import Guidance
from harness_common.core.ids import encode
from harness_common.core.message import message_chars
from harness_common.store.repairs import keep_repairs
from harness_worker.steps.context import StepContext
from harness_worker.steps.contract.actions import read_action
from harness_worker.steps.contract.arguments import read_calls, read_text_calls
from harness_worker.steps.contract.output import read_output
from harness_worker.steps.contract.read import Read
from harness_worker.steps.contract.terms import Terms

log = structlog.get_logger()

_LONG_CHARS: Final = 8_000
"""Longer answers are read in a thread: the process has other runs to look after."""


class RepairCount:
    """The repairs of a step's answers so far. They are written one after the other, since of two
    that are under way together the smaller count could be the one that stands.
    """

    def __init__(self) -> None:
        self.kinds = Counter[str]()
        self.writing = asyncio.Lock()


async def read_answer(
    ctx: StepContext,
    terms: Terms,
    answer: ChatResult,
    *,
    model: str,
    so_far: RepairCount | None = None,
) -> tuple[ChatResult, Guidance]:
    """Return the answer as it was meant, and what follows from its form; repairs are counted, as
    those of the `model` that answered.

    A step of several answers hands the count of those before in, which is added to.
    """
    if message_chars(answer.message) > _LONG_CHARS:
        read = await asyncio.to_thread(read_by, terms, answer)
    else:
        read = read_by(terms, answer)
    if read.repairs:
        try:
            count = so_far or RepairCount()
            async with count.writing:
                count.kinds.update(counts(read.repairs))
                await keep_repairs(ctx.runtime.db, ctx.run, ctx.number, model, count.kinds)
        except Transient as error:  # the event has them all: the answer is worth more than a count
            log.warning("repairs.not_counted", run_id=encode("run", ctx.run.id), error=str(error))
    return read.answer, read.guidance


def read_by(terms: Terms, answer: ChatResult) -> Read:
    """Read an answer; pure."""
    message = answer.message
    if answer.finish in {"refusal", "pause"} and not message.has_tool_uses():
        return Read(answer)
    if message.has_tool_uses():
        word = hedged(message.text(), terms.spec.hedges) if terms.spec.watch_text else None
        return read_calls(terms, answer, word)
    if terms.by_actions:
        return read_action(terms, answer)
    if terms.tools and not terms.answering and terms.spec.repair:
        read = read_text_calls(terms, answer)
        if read is not None:
            return read
    if terms.output_schema is not None:
        return read_output(terms, answer)
    return Read(answer, Guidance(memo={CONTRACT: None}) if terms.memo is not None else Guidance())
