"""The model step: one sampling over one frozen context."""

from __future__ import annotations

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.context_step import OVERFLOW, was_full
from harness_common.core.errors import Limited, Permanent
from harness_common.core.step import ContextFull, ModelAnswered
from harness_worker.steps import session_memory
from harness_worker.steps.context import StepContext
from harness_worker.steps.policy import offered
from harness_worker.steps.prompt import build_prompt, learn, record_of
from harness_worker.steps.recorded import recorded_answer, recorded_compaction_due
from harness_worker.tools.runner import declared_tool


async def run(ctx: StepContext) -> ModelAnswered | ContextFull:
    """Ask the agent's model for its next answer, or say that its prompt has to be compacted first.

    Raises what `Model.chat` raises, and `Limited` without a call while its provider is throttled;
    `advance` decides whether that is a delay, another attempt or the end.
    """
    if ctx.run.overrides.get("recorded"):
        return await recorded_compaction_due(ctx) or await recorded_answer(ctx)
    spec, runtime = ctx.spec, ctx.runtime
    model = runtime.models.get(spec.model)
    registry = await runtime.catalog.registry(ctx.run.tenant_id, spec.tools)
    for name in spec.tools:
        declared_tool(registry, name)
    tools = await offered(ctx, registry)
    prompt = await build_prompt(
        ctx, model, [ToolDef(t.name, t.description, t.input_schema) for t in tools]
    )
    if (full := prompt.full(ctx)) is not None:
        return full
    record = await record_of(ctx, prompt)
    request = ChatRequest(
        model=spec.model.partition("/")[2],
        messages=prompt.rendered.messages,
        system=prompt.rendered.system,
        tools=prompt.tools,
        max_tokens=spec.max_output_tokens,
        temperature=spec.temperature,
        first_token_timeout_s=spec.first_token_timeout_s,
        total_timeout_s=spec.model_timeout_s,
        options={**spec.model_options, "attempt": ctx.run.state.failures + 1},
        step=ctx.number,
    )

    async def on_delta(text: str) -> None:
        runtime.live.delta(ctx.run.id, ctx.number, text)

    throttles = runtime.throttles
    await throttles.permit(model.scope, ctx.run.state.memo)
    called_at = runtime.clock.now()
    try:
        answer = await model.chat(request, on_delta if model.capabilities.streaming else None)
    except Limited as error:
        raise await throttles.refused(error, called_at, ctx.run.state.limited) from None
    except Permanent as error:
        if error.error_code != OVERFLOW or was_full(ctx.run.state) == "provider":
            raise
        return prompt.too_long("provider")
    learn(ctx, prompt, answer.usage)
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
        notes=prompt.rendered.notes,
        context=record,
        session_summary=await session_memory.after_answer(ctx, answer),
    )
