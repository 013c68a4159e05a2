"""Model nodes of a graph: one answer each, recorded in the ledger like any other call, so that an
answer that was paid for is never asked for again.

A node asks the way a model step does: along a chain of models, with their breakers, and by its
contract when it has an `output_schema`. Answers that had not the form are paid for too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult
from harness_common.core.budget import FREE, Spent, require_left, spent_on
from harness_common.core.doubt import CONTRACT
from harness_common.core.errors import HarnessError, Limited, Transient
from harness_common.core.events import Event
from harness_common.core.fallback import options_for
from harness_common.core.graph import ANSWER_CUT, REFUSED
from harness_common.core.message import Json, user
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.store.connection import DatabaseUnavailable
from harness_worker.steps.asking import ask
from harness_worker.steps.context import StepContext
from harness_worker.steps.contract.answer import RepairCount, read_answer
from harness_worker.steps.contract.request import contracted
from harness_worker.steps.contract.terms import Terms, terms_of
from harness_worker.tools.call import CancelAsked, PendingCall, ToolScope
from harness_worker.tools.notes import write_event


@dataclass(slots=True)
class _Question:
    """One call of a model node while it is being answered."""

    call: PendingCall
    spent: Spent = FREE
    restarts: int = 0
    begun: float = field(default_factory=time.monotonic)

    def failed(self, code: str, message: str) -> CallOutcome:
        return self._outcome(CallStatus.FAILED, message, code)

    def answered(self, answer: ChatResult, text: str) -> CallOutcome:
        if answer.finish == "refusal":
            return self._outcome(CallStatus.FAILED, text, REFUSED, answer.model)
        return self._outcome(CallStatus.SUCCEEDED, text, None, answer.model)

    def cut(self, answer: ChatResult, max_tokens: int) -> CallOutcome:
        """Fail with the beginning of an answer that has no end: nothing may be built on it."""
        told = (
            f"the answer was cut off at max_output_tokens ({max_tokens}): raise it, or ask for "
            f"less. It begins: {answer.message.text()}"
        )
        return self._outcome(CallStatus.FAILED, told, ANSWER_CUT, answer.model)

    def _outcome(
        self, status: CallStatus, content: str, error: str | None, model: str | None = None
    ) -> CallOutcome:
        call = self.call
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=status,
            content=content,
            error_type=error,
            duration_ms=(time.monotonic() - self.begun) * 1000,
            cost_usd=self.spent.cost_usd,
            input_tokens=self.spent.input_tokens,
            output_tokens=self.spent.output_tokens,
            attempt=call.attempt + 1,
            effect="idempotent",
            served_by=model,
            restarts=self.restarts,
        )


class ModelCalls:
    """The model nodes of one step, and what there is to tell of them."""

    def __init__(self, ctx: StepContext, scope: ToolScope, calls: int) -> None:
        self._ctx, self._scope = ctx, scope
        self._streams = calls == 1
        self.events: list[Event] = []
        """What could not be told at once."""
        self._repairs = RepairCount()
        self._memo = dict(ctx.run.state.memo)
        state = ctx.run.state
        # With what the ledger has of an earlier attempt at this step: the run counts that later.
        made = [row for row in ctx.calls if CallStatus(row["status"]) in ENDED]
        self._spent = sum((spent_on(row) for row in made), state.spent)

    async def run(self, call: PendingCall) -> CallOutcome:
        """Return the answer that the ledger has, or ask for one.

        Raises `Limited` as the model step does, and `Transient` while the run's retry rule has
        attempts left; whatever else goes wrong is the outcome.
        """
        if call.status in ENDED:
            return call.recorded()
        question = _Question(call)
        try:
            return await self._answer(question)
        except Limited:
            raise
        except HarnessError as error:
            state = self._ctx.run.state
            again = state.failures + 1 < state.retry.max_attempts
            if isinstance(error, Transient) and again:
                raise
            return question.failed(error.error_code, error.message)

    async def _answer(self, question: _Question) -> CallOutcome:
        """Ask until an answer has the form that is wanted, as often as the contract lets it."""
        asked, ctx = question.call.arguments, self._ctx
        request = request_of(ctx, asked)
        memo: Mapping[str, Json] | None = None
        while True:
            self._may_ask()
            terms = _terms(ctx, asked, memo)

            def form(request: ChatRequest, can: Capabilities, terms: Terms = terms) -> ChatRequest:
                del can  # no tools are offered, so that all models are asked in the same form
                return contracted(request, terms)

            got = await ask(
                ctx,
                request,
                show=self._streams and terms.output_schema is None,
                form=form,
                chain=chain_of(ctx, asked),
                memo=self._slot(),
            )
            self._pay(question, got.answer)
            question.restarts += got.restarts
            answer, read = await read_answer(
                ctx, terms, got.answer, model=got.name, so_far=self._repairs
            )
            await self._tell((*got.guidance.events, *read.events))
            if read.stop is not None:
                told = dict(read.error or {})
                return question.failed(str(told.get("code")), str(told.get("message")))
            if not read.again and read.output is None and answer.finish == "length":
                return question.cut(answer, request.max_tokens)
            if not read.again:
                text = answer.message.text() if read.output is None else read.output
                return question.answered(answer, text)
            request = replace(request, messages=(*request.messages, answer.message, *read.messages))
            memo = read.memo[CONTRACT]

    async def _tell(self, events: Sequence[Event]) -> None:
        """Put on record what an answer took, before the answer itself is: the step may be put off,
        or its process die, and nobody else would tell of it.
        """
        for event in events:
            try:
                await write_event(self._scope, event.type, dict(event.payload))
            except DatabaseUnavailable:
                self.events.append(event)

    def _may_ask(self) -> None:
        """Raise when the run is to be left, or has no budget left."""
        held = self._ctx.held
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        require_left(self._ctx.run.state.limits, self._spent)

    def _slot(self) -> Mapping[str, Json]:
        """Return the run's slot of a paced release: good for one call, the others get their own."""
        memo, self._memo = self._memo, {}
        return memo

    def _pay(self, question: _Question, answer: ChatResult) -> None:
        usage = answer.usage
        spent = Spent(usage.input_tokens, usage.output_tokens, answer.cost_usd or 0.0)
        question.spent += spent
        self._spent += spent


def chain_of(ctx: StepContext, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the models of a node: its own, else the agent's; each with its own stand-ins."""
    if "model" not in asked:
        stand_ins = asked.get("fallback_models")
        return ctx.spec.models if stand_ins is None else (ctx.spec.model, *stand_ins)
    return (asked["model"], *asked.get("fallback_models", ()))


def _terms(ctx: StepContext, asked: Mapping[str, Any], memo: Mapping[str, Json] | None) -> Terms:
    """Return the contract of a node: its form is its own, the rest is the agent's."""
    terms = terms_of(ctx, Capabilities(tools=True), ())
    return replace(
        terms, output_schema=asked.get("output_schema"), memo=memo, is_last=False, answering=False
    )


def request_of(ctx: StepContext, asked: Mapping[str, Any]) -> ChatRequest:
    """Return what a node asks its model for."""
    spec = ctx.spec
    name = asked.get("model", spec.model)
    options = {**options_for(name, spec.model, spec.model_options), **asked.get("options", {})}
    return ChatRequest(
        model=name.partition("/")[2],
        messages=(user(asked["prompt"]),),
        system=asked.get("system", spec.system),
        max_tokens=asked.get("max_output_tokens", spec.max_output_tokens),
        temperature=asked.get("temperature", spec.temperature),
        first_token_timeout_s=spec.first_token_timeout_s,
        total_timeout_s=spec.model_timeout_s,
        options={**options, "attempt": ctx.run.state.failures + 1},
        step=ctx.number,
    )
