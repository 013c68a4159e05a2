"""The model step: one sampling over one frozen context."""

from __future__ import annotations

from harness_common.contracts.model import Capabilities, ChatRequest, ToolDef
from harness_common.core.context_step import OVERFLOW, was_full
from harness_common.core.errors import HarnessError, Permanent
from harness_common.core.guidance import summed
from harness_common.core.step import ContextFull, ModelAnswered
from harness_common.core.values import replace
from harness_worker.steps import session_memory, stop_when
from harness_worker.steps.asking import Asked, ask, first_model
from harness_worker.steps.context import StepContext
from harness_worker.steps.contract.answer import read_answer
from harness_worker.steps.contract.request import contracted
from harness_worker.steps.contract.terms import terms_of
from harness_worker.steps.guardrails import Rails
from harness_worker.steps.guards import after_answer
from harness_worker.steps.memories import recalled
from harness_worker.steps.policy import offered
from harness_worker.steps.prompt import Prompt, build_prompt, learn, record_of, shown_of
from harness_worker.steps.recorded import recorded_answer, recorded_compaction_due
from harness_worker.steps.registry import registry_of
from harness_worker.steps.tool_choice import tool_choice
from harness_worker.tools.runner import declared_tool


async def run(ctx: StepContext) -> ModelAnswered | ContextFull:
    """Ask the agent's model for its next answer, or say that its prompt has to be compacted first.

    Raises what `ask` raises; `advance` decides whether that is a delay, another attempt or the end.
    """
    if ctx.run.overrides.get("recorded"):
        return await recorded_compaction_due(ctx) or await recorded_answer(ctx)
    rails = Rails(ctx)
    try:
        done = await _asked(ctx, rails)
    except HarnessError as error:
        rails.charge(error)
        raise
    return replace(done, spent=ctx.held.paid) if isinstance(done, ContextFull) else done


async def _asked(ctx: StepContext, rails: Rails) -> ModelAnswered | ContextFull:
    registry = await registry_of(ctx)
    for name in ctx.spec.tools:
        declared_tool(registry, name)
    tools = await offered(ctx, registry)
    memory, model = await recalled(ctx), first_model(ctx)
    prompt = await build_prompt(
        ctx,
        model,
        [ToolDef(t.name, t.description, t.input_schema) for t in tools],
        await rails.input(shown_of(ctx)),
        memory.text,
    )
    if (full := prompt.full(ctx)) is not None:
        return full
    request = replace(_request(ctx, prompt), tool_choice=tool_choice(ctx, tools))

    def contract(request: ChatRequest, can: Capabilities) -> ChatRequest:
        return contracted(request, terms_of(ctx, can, tools))

    record = await record_of(ctx, prompt, contract(request, model.capabilities))
    try:
        # What a guardrail may still take back is not shown while it is said.
        asked = await ask(ctx, request, show=not ctx.spec.guardrails.output, form=contract)
    except Permanent as error:
        if error.error_code != OVERFLOW or was_full(ctx.run.state) == "provider":
            raise
        return prompt.too_long("provider")
    learn(ctx, prompt, asked)
    terms = terms_of(ctx, asked.capabilities, tools)
    answer, ruled = await read_answer(ctx, terms, asked.answer, model=asked.name)
    answered = replace(
        _answered(asked),
        message=answer.message,
        finish=answer.finish,
        notes=prompt.rendered.notes,
        context=record,
    )
    ends = stop_when.after_answer(ctx, request, answered).succeeds
    railed = await rails.output(answered, ruled, ends=ends)
    if railed.message is not answered.message:
        ruled = replace(ruled, output=None)  # the output is what the guardrail made of it
    said = after_answer(ctx, request, railed)
    guidance = summed((memory.guidance, asked.guidance, ruled, rails.guidance, said))
    ruled_on = replace(railed, guidance=guidance)
    return replace(ruled_on, session_summary=await session_memory.after_answer(ctx, ruled_on))


def _request(ctx: StepContext, prompt: Prompt) -> ChatRequest:
    spec = ctx.spec
    return ChatRequest(
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


def _answered(asked: Asked) -> ModelAnswered:
    answer = asked.answer
    return ModelAnswered(
        message=answer.message,
        finish=answer.finish,
        model=answer.model,
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
        cached_input_tokens=answer.usage.cached_input_tokens,
        cost_usd=answer.cost_usd or 0.0,
        priced=answer.cost_usd is not None,
        scripted=asked.capabilities.scripted,
        first_token_ms=answer.first_token_ms,
        cache_write_tokens=answer.usage.cache_write_tokens,
        restarts=asked.restarts,
    )
