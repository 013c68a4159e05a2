"""The model step: one sampling over one frozen context."""

from __future__ import annotations

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.errors import Limited
from harness_common.core.step import ModelAnswered
from harness_worker.steps.context import StepContext
from harness_worker.steps.policy import offered
from harness_worker.steps.recorded import recorded_answer
from harness_worker.steps.registry import registry_of
from harness_worker.tools.runner import declared_tool


async def run(ctx: StepContext) -> ModelAnswered:
    """Ask the agent's model for its next answer.

    Raises what `Model.chat` raises, and `Limited` without a call while its provider is throttled;
    `advance` decides whether that is a delay, another attempt or the end.
    """
    if ctx.run.overrides.get("recorded"):
        return await recorded_answer(ctx)
    spec, runtime = ctx.spec, ctx.runtime
    model = runtime.models.get(spec.model)
    registry = await registry_of(ctx)
    for name in spec.tools:
        declared_tool(registry, name)
    tools = await offered(ctx, registry)
    request = ChatRequest(
        model=spec.model.partition("/")[2],
        messages=ctx.history + ctx.messages,
        system=spec.system,
        tools=[ToolDef(t.name, t.description, t.input_schema) for t in tools],
        max_tokens=spec.max_output_tokens,
        temperature=spec.temperature,
        first_token_timeout_s=spec.first_token_timeout_s,
        total_timeout_s=spec.model_timeout_s,
        options={**spec.model_options, "attempt": ctx.run.state.failures + 1},
        step=ctx.number,
    )

    shown = 0

    async def on_delta(text: str) -> None:
        nonlocal shown
        runtime.live.delta(ctx.run.id, ctx.number, text, shown)
        shown += len(text)

    throttles = runtime.throttles
    await throttles.permit(model.scope, ctx.run.state.memo)
    called_at = runtime.clock.now()
    try:
        answer = await model.chat(request, on_delta if model.capabilities.streaming else None)
    except Limited as error:
        raise await throttles.refused(error, called_at, ctx.run.state.limited) from None
    throttles.worked(model.scope, answer.rate)
    return ModelAnswered(
        message=answer.message,
        finish=answer.finish,
        model=answer.model,
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
        cached_input_tokens=answer.usage.cached_input_tokens,
        cost_usd=answer.cost_usd or 0.0,
        priced=answer.cost_usd is not None,
        scripted=model.capabilities.scripted,
        first_token_ms=answer.first_token_ms,
    )
