"""Model nodes of a graph: one sampling each, recorded in the ledger like any other call, so that an
answer that was paid for is never asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.core.budget import exceeded
from harness_common.core.errors import HarnessError, Limited, Transient
from harness_common.core.graph import MODEL_CALL
from harness_common.core.message import user
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.steps.context import StepContext
from harness_worker.steps.sampling import sample
from harness_worker.tools.call import CancelAsked, PendingCall

_CHARS_PER_TOKEN: Final = 3


class ModelCalls:
    """The samplings of one step."""

    def __init__(self, ctx: StepContext, calls: int) -> None:
        self._ctx = ctx
        self._streams = calls == 1
        self._shown = 0
        self._memo = dict(ctx.run.state.memo)
        state = ctx.run.state
        self._tokens = state.input_tokens + state.output_tokens
        self._cost_usd = state.cost_usd

    async def run(self, call: PendingCall) -> CallOutcome:
        """Return the answer that the ledger has, or ask for one.

        Raises `Limited` as the model step does, and `Transient` while the run's retry rule has
        attempts left; whatever else goes wrong is the outcome.
        """
        if call.status in ENDED:
            return call.recorded()
        held = self._ctx.held
        if held.cancel_requested or held.release_asked:
            raise CancelAsked
        if reason := exceeded(self._ctx.run.state.limits, self._tokens, self._cost_usd):
            return _failed(call, reason.upper(), "the model was not asked: the budget is used up")
        begun = time.monotonic()
        try:
            answer = await self._sample(call)
        except Limited:
            raise
        except HarnessError as error:
            state = self._ctx.run.state
            again = state.failures + 1 < state.retry.max_attempts
            if isinstance(error, Transient) and again:
                raise
            return _failed(call, error.error_code, error.message)
        return self._outcome(call, answer, (time.monotonic() - begun) * 1000)

    async def _sample(self, call: PendingCall) -> ChatResult:
        ctx, asked = self._ctx, call.arguments
        model = ctx.runtime.models.get(asked.get("model", ctx.spec.model))
        # The run's slot of a paced release is good for one call; the others get their own.
        memo, self._memo = self._memo, {}
        streams = self._streams and model.capabilities.streaming
        on_delta = self._delta if streams else None
        return await sample(ctx, model, _request(ctx, asked), on_delta, memo=memo)

    async def _delta(self, text: str) -> None:
        self._ctx.runtime.live.delta(self._ctx.run.id, self._ctx.number, text, self._shown)
        self._shown += len(text)

    def _outcome(self, call: PendingCall, answer: ChatResult, ms: float) -> CallOutcome:
        usage = answer.usage
        self._tokens += usage.input_tokens + usage.output_tokens
        self._cost_usd += answer.cost_usd or 0.0
        refused = answer.finish == "refusal"
        return CallOutcome(
            index=call.index,
            tool_use_id=call.tool_use_id,
            name=call.name,
            status=CallStatus.FAILED if refused else CallStatus.SUCCEEDED,
            content=answer.message.text(),
            error_type="REFUSED" if refused else None,
            duration_ms=ms,
            cost_usd=answer.cost_usd or 0.0,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            attempt=call.attempt + 1,
            effect="idempotent",
            served_by=answer.model,
        )


def _request(ctx: StepContext, asked: Mapping[str, Any]) -> ChatRequest:
    spec = ctx.spec
    options = {**spec.model_options, **asked.get("options", {})}
    return ChatRequest(
        model=asked.get("model", spec.model).partition("/")[2],
        messages=(user(asked["prompt"]),),
        system=asked.get("system", spec.system),
        max_tokens=asked.get("max_output_tokens", spec.max_output_tokens),
        temperature=asked.get("temperature", spec.temperature),
        first_token_timeout_s=spec.first_token_timeout_s,
        total_timeout_s=spec.model_timeout_s,
        options={**options, "attempt": ctx.run.state.failures + 1},
        step=ctx.number,
    )


def _failed(call: PendingCall, code: str, message: str) -> CallOutcome:
    return CallOutcome(
        index=call.index,
        tool_use_id=call.tool_use_id,
        name=call.name,
        status=CallStatus.FAILED,
        content=message,
        error_type=code,
        attempt=call.attempt + 1,
        effect="idempotent",
    )


def most_of_nodes(ctx: StepContext) -> tuple[int, float]:
    """Return the most tokens and money that the model nodes of the coming step may take."""
    tokens, cost_usd = 0, 0.0
    prices = ctx.runtime.models.prices
    for row in ctx.calls:
        if row["name"] != MODEL_CALL or CallStatus(row["status"]) in ENDED:
            continue
        request = _request(ctx, row["arguments"])
        chars = len(request.system) + len(row["arguments"]["prompt"])
        usage = Usage(chars // _CHARS_PER_TOKEN + 1, request.max_tokens)
        tokens += usage.input_tokens + usage.output_tokens
        model = row["arguments"].get("model", ctx.spec.model)
        cost_usd += prices.cost_usd(model, usage) or 0.0
    return tokens, cost_usd
