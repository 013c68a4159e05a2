"""One call to one model, within the throttle of its provider: every sampling of every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness_common.contracts.model import ChatRequest, ChatResult, Model, OnDelta
from harness_common.core.budget import Spent
from harness_common.core.errors import Limited
from harness_common.core.message import Json
from harness_worker.steps.context import StepContext
from harness_worker.telemetry.model_calls import ModelCall


async def sample(
    ctx: StepContext,
    model: Model,
    request: ChatRequest,
    on_delta: OnDelta | None = None,
    *,
    memo: Mapping[str, Json] | None = None,
    wants_slot: Callable[[Limited], bool] = lambda _: True,
) -> ChatResult:
    """Ask a model once.

    `memo` holds the run's slot in a paced release, that of the run when it is None; a
    refused call takes a new one if it `wants_slot`. What the answer costs is the step's from then
    on, however that ends. Raises what `Model.chat` raises, and `Limited`
    without a call while the provider is throttled.
    """
    throttles, state = ctx.runtime.throttles, ctx.run.state
    await throttles.permit(model.scope, state.memo if memo is None else memo)
    called_at = ctx.runtime.clock.now()
    try:
        with ModelCall(ctx.run, model.provider, request, streams=on_delta is not None) as seen:
            answer = await model.chat(request, on_delta)
            seen.answered(answer)
    except Limited as error:
        raise await throttles.refused(
            error, called_at, state.limited, wants_slot=wants_slot(error)
        ) from None
    usage = answer.usage
    ctx.held.paid += Spent(usage.input_tokens, usage.output_tokens, answer.cost_usd or 0.0)
    throttles.worked(model.scope, answer.rate)
    return answer
