"""The compact step: a summary takes the place of older messages, so that the run stays inside its
model's window.

The messages themselves stay stored; the summary is one more of them, and an entry of the memo says
what is shown beside it (`core.context_view`). The last rounds stay word for word. The step is
repeated safely: nothing but its own commit changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness_common.contracts.model import Model
from harness_common.contracts.tool import EffectClass
from harness_common.core.context_extract import extract, said_by_user, summary_body
from harness_common.core.context_rounds import STALE, Cut, choose_cut
from harness_common.core.context_step import FULL, OVERFLOW
from harness_common.core.context_summary import counted, summary_message, trust_of
from harness_common.core.context_view import Shown, edited, edits_of, is_summary
from harness_common.core.errors import HarnessError, Invalid, Permanent
from harness_common.core.message import Json, from_json, to_json
from harness_common.core.step import Compacted
from harness_common.core.tokens import messages_tokens
from harness_common.core.values import replace
from harness_common.redaction import redactor
from harness_worker.context.summarise import Summary, summarise
from harness_worker.steps.context import StepContext
from harness_worker.steps.guardrails import Rails
from harness_worker.steps.prompt import shown_of
from harness_worker.steps.recorded import recorded_compaction
from harness_worker.steps.registry import registry_of
from harness_worker.steps.session_memory import remembered
from harness_worker.steps.summary_call import SummaryCalls

_SUMMARY_SHARE: Final = 0.2
"""How much of the room a summary may take, however long the agent lets it be."""
_KEPT_SHARE: Final = 0.5
"""How much of the room the rounds that stay may take: the rest is for what comes."""
_REFUSED_SHARE: Final = 0.6
"""A prompt that the provider refused was too long: this much of it is taken to fit."""
_PIECE_SHARE: Final = 0.7
"""The most of the summarising model's window that one piece may take; an estimate may be off."""
_MOST_PIECE_TOKENS: Final = 60_000
_LEAST_TOKENS: Final = 100
_GAIN: Final = 0.95
_TRIMMED: Final = "Done:\n- (older rounds were left out, as this agent's rules say)"


async def run(ctx: StepContext) -> Compacted:
    """Compact the conversation as the agent's rules say.

    Raises what the summarising model raises and the scheduler can wait for, and `Permanent`
    CONTEXT_OVERFLOW when the provider refused a prompt that cannot be made shorter.
    """
    if ctx.run.overrides.get("recorded"):
        return await recorded_compaction(ctx)
    shown, full = await Rails(ctx).rewritten(shown_of(ctx)), ctx.run.state.memo[FULL]
    room_tokens = _room_tokens(ctx, full)
    summary_tokens = min(
        ctx.spec.context.summary_tokens, max(_LEAST_TOKENS, int(room_tokens * _SUMMARY_SHARE))
    )
    cut = choose_cut(
        shown,
        rounds_kept=ctx.spec.context.rounds_kept,
        # A summary, and as much again of what users said.
        target_tokens=max(_LEAST_TOKENS, int((room_tokens - 2 * summary_tokens) * _KEPT_SHARE)),
        reads=await _reads(ctx),
    )
    calls = SummaryCalls(ctx, summary_tokens)
    try:
        return await _smaller(ctx, calls, shown, cut, full)
    except HarnessError as error:
        calls.charge(error)
        raise


async def _smaller(
    ctx: StepContext, calls: SummaryCalls, shown: Sequence[Shown], cut: Cut, full: Json
) -> Compacted:
    """Compact what is older than the cut, if anything is gained by that."""
    before = messages_tokens(one.message for one in shown)
    older = [edited(one, cut.stale) for one in shown[: cut.at]]
    if cut.edits or any(not is_summary(one.message) for one in older):
        result = await _compacted(ctx, calls, shown, older, cut)
        if result.tokens_after < before * _GAIN:
            body = summary_body(result.message) if result.message else ""
            so_far = await remembered(ctx, f"under way: {body}")
            return replace(calls.charged(result), session_summary=so_far)
    if full["why"] == "provider":
        raise Permanent(
            f"the provider refused a prompt of about {full['tokens']} tokens as too long, and what "
            "has to stay of the conversation cannot be made shorter; use a model with a larger "
            "window, fewer tools or shorter inputs",
            code=OVERFLOW,
            tokens=full["tokens"],
        )
    return calls.charged(Compacted("nothing", tokens_before=before, tokens_after=before))


def _room_tokens(ctx: StepContext, full: Json) -> int:
    """Return how much a conversation may take beside system text and tools, as we estimate."""
    ratio = ctx.runtime.context.calibration.ratio(ctx.spec.model)
    refused = full["why"] == "provider"
    limit = full["tokens"] * _REFUSED_SHARE if refused else full["limit"]
    return max(0, int((limit - full["fixed"]) / ratio))


async def _reads(ctx: StepContext) -> frozenset[str]:
    """Name the agent's tools that only read: an equal call makes an older result stale."""
    registry = await registry_of(ctx)
    return frozenset(
        name
        for name in ctx.spec.tools
        if name in registry and registry.get(name).spec.effect is EffectClass.READ
    )


async def _compacted(
    ctx: StepContext,
    calls: SummaryCalls,
    shown: Sequence[Shown],
    older: Sequence[Shown],
    cut: Cut,
) -> Compacted:
    """Write the summary, and work out what is shown with it."""
    summary_tokens, tenant_id = calls.summary_tokens, ctx.run.tenant_id
    summary = await _summary(ctx, calls, older)
    kept = [one for one in shown[cut.at :] if not is_summary(one.message)]
    edits = _edits(shown, kept, cut)
    kept_from, history_from = _kept_from(ctx, kept)
    counts = counted(older)
    about: dict[str, Json] = {
        **counts,
        "how": summary.how,
        "step": ctx.number,
        "from": kept_from,
        "history_from": history_from,
        "edits": edits,
        "why": {k: "stale" if v == STALE else "shortened" for k, v in edits.items()},
    }
    message = summary_message(
        redactor.clean(tenant_id, summary.body),
        [redactor.clean(tenant_id, text) for text in said_by_user(older, summary_tokens)],
        trust_of(older),
        about,
    )
    after = (message, *(edited(one, edits).message for one in kept))
    return Compacted(
        how=summary.how,
        message=message,
        kept_from=kept_from,
        history_from=history_from,
        covers=counts["covers"],
        tokens_before=messages_tokens(one.message for one in shown),
        tokens_after=messages_tokens(after),
        note=summary.note,
    )


def _edits(shown: Sequence[Shown], kept: Sequence[Shown], cut: Cut) -> dict[str, str]:
    """Join the edits of this compaction to those of the one before that still matter."""
    there = {one.origin for one in kept}
    before = edits_of(shown[0].message) if shown else {}
    old = {k: v for k, v in before.items() if k.rpartition(".")[0] in there}
    return old | dict(cut.edits)


def _kept_from(ctx: StepContext, kept: Sequence[Shown]) -> tuple[int, str | None]:
    """Return the first message of this run that stays, and the first of earlier runs."""
    own = next((int(one.origin) for one in kept if one.origin.isdecimal()), None)
    past = next((one.origin for one in kept if ":" in one.origin), None)
    return ctx.run.state.messages + 1 if own is None else own, past


async def _summary(ctx: StepContext, calls: SummaryCalls, older: Sequence[Shown]) -> Summary:
    """Make of older messages what the agent's strategy says; where no model can be asked, the fixed
    form.
    """
    rules = ctx.spec.context
    if rules.strategy == "trim":
        return Summary(_TRIMMED, "trimmed")
    extracted = Summary(extract(older, calls.summary_tokens), "extracted")
    size = messages_tokens(one.message for one in older if not is_summary(one.message))
    if rules.strategy == "extract" or size < calls.summary_tokens:  # no model makes it shorter
        return extracted
    try:
        model = calls.model()
    except (Invalid, Permanent) as error:
        return Summary(extracted.body, "extracted", f"no model to summarise: {error}"[:300])
    if model.capabilities.scripted:
        note = "a scripted model says only what is declared, so it does not summarise"
        return Summary(extracted.body, "extracted", note)
    return await summarise(
        [_cleaned(ctx, one) for one in older],
        calls.ask,
        piece_tokens=piece_tokens(ctx, calls, model),
        summary_tokens=calls.summary_tokens,
    )


def piece_tokens(ctx: StepContext, calls: SummaryCalls, model: Model) -> int:
    """Return the longest piece that surely fits the summarising model."""
    rules = ctx.spec.context
    window = model.capabilities.context_window_tokens
    window = rules.window(window) if calls.is_own else window
    ratio = max(1.0, ctx.runtime.context.calibration.ratio(calls.name))
    room = int(window * _PIECE_SHARE / ratio) - calls.most_tokens()
    return max(_LEAST_TOKENS, min(_MOST_PIECE_TOKENS, room))


def _cleaned(ctx: StepContext, one: Shown) -> Shown:
    """Blot out the tenant's secrets before a model is asked to repeat what was said."""
    data = to_json(one.message)
    clean = redactor.clean_json(ctx.run.tenant_id, data)
    return one if clean is data else Shown(from_json(clean), one.origin)
