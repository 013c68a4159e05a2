"""The prompt of a model step: put together, measured, and recorded so that it can be shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.contracts.model import ChatRequest, Model, ToolDef
from harness_common.core.context_prompt import Rendered, Section, assemble
from harness_common.core.context_step import was_full
from harness_common.core.context_view import CONTEXT, Compaction, Shown, view
from harness_common.core.message import Json
from harness_common.core.step import ContextFull
from harness_worker.context.parts import keep_part, system_part, tools_part
from harness_worker.steps.asking import Asked
from harness_worker.steps.context import StepContext
from harness_worker.steps.sections import sections_of

_LEAST_SHARE: Final = 0.1
"""A conversation that takes less of the limit is not compacted: nothing would be gained."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, and how much of its window that takes."""

    rendered: Rendered
    tools: Sequence[ToolDef]
    limit: int
    ratio: float
    own: bool = False
    """Whether the system text holds what only this run knows: what is remembered, how things
    stand.
    """

    @property
    def tokens(self) -> int:
        """The size of the prompt as this model counts, as far as that is known."""
        return self.calibrated(self.rendered.tokens)

    def calibrated(self, estimated: int) -> int:
        """Return an estimate in the model's own tokens."""
        return math.ceil(estimated * self.ratio)

    def full(self, ctx: StepContext) -> ContextFull | None:
        """Return that a compaction has to come first; None when the prompt may be sent.

        One that was compacted in this turn already is sent as it is: the estimate may be wrong, and
        the provider knows.
        """
        if self.tokens <= self.limit or was_full(ctx.run.state) is not None:
            return None
        talk = self.tokens - self.calibrated(self.rendered.fixed_tokens)
        if talk < self.limit * _LEAST_SHARE:  # it is the system text and the tools that are long
            return None
        return self.too_long("limit")

    def too_long(self, why: str) -> ContextFull:
        """Return that the prompt is too long."""
        return ContextFull(
            "provider" if why == "provider" else "limit",
            self.tokens,
            self.limit,
            self.calibrated(self.rendered.fixed_tokens),
        )


def shown_of(ctx: StepContext) -> tuple[Shown, ...]:
    """Return the conversation as the model is shown it."""
    past = ctx.past or tuple(Shown(m) for m in ctx.history)
    return view(past, ctx.messages, ctx.first, Compaction.of(ctx.run.state.memo))


async def build_prompt(
    ctx: StepContext,
    model: Model,
    tools: Sequence[ToolDef],
    shown: Sequence[Shown],
    remembered: str = "",
) -> Prompt:
    """Put the prompt of a model step together; `shown` is the conversation as the guardrails let it
    pass, `remembered` what the run is told of its memory: the same all through the run.
    """
    spec = ctx.spec
    limit = spec.context.limit_tokens(
        model.capabilities.context_window_tokens, spec.max_output_tokens
    )
    extra = await sections_of(ctx)
    assembled = assemble(
        system=spec.system,
        skill=extra.skill,
        recent=shown,
        memories=(*(Section("Memory", t) for t in (remembered,) if t), *extra.memories),
        state=extra.state,
        tools=tools,
    )
    ratio = ctx.runtime.context.calibration.ratio(spec.model)
    own = bool(remembered or extra.memories or extra.state)
    return Prompt(assembled.render(limit), tools, limit, ratio, own)


async def record_of(ctx: StepContext, prompt: Prompt, request: ChatRequest) -> Json:
    """Return what is recorded of a prompt: enough to put it together again, byte for byte.

    `request` is the prompt in the form that the agent's contract gives it.
    """
    runtime, tenant_id = ctx.runtime, ctx.run.tenant_id
    db, memory = runtime.db, runtime.context
    rendered, owner = prompt.rendered, ctx.run.id if prompt.own else None
    out: dict[str, Json] = {
        "tokens": prompt.tokens,
        "limit": prompt.limit,
        "ratio": round(prompt.ratio, 3),
        "by": rendered.by,
        "seen": ctx.run.state.messages + len(rendered.notes),
        "system": await keep_part(db, memory, tenant_id, system_part(request.system), owner),
        "tools": await keep_part(db, memory, tenant_id, tools_part(request.tools)),
    }
    if (compaction := ctx.run.state.memo.get(CONTEXT)) is not None:
        out["compaction"] = compaction
    if rendered.left_out:
        out["left_out"] = list(rendered.left_out)
    return out


def learn(ctx: StepContext, prompt: Prompt, asked: Asked) -> None:
    """Compare the estimate with what the provider counted, if it was the agent's own model."""
    usage = asked.answer.usage
    if not usage.estimated and asked.name == ctx.spec.model:
        memory = ctx.runtime.context
        memory.calibration.learn(ctx.spec.model, prompt.rendered.tokens, usage.input_tokens)
