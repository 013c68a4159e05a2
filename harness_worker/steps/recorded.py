"""Dry runs: what the model said and the tools gave in the source run, instead of asking them again.

Nothing outside is called. A run that asks for something else than its source did is told that it is
not on record.
"""

from __future__ import annotations

from uuid import UUID

from harness_common.contracts.model import Capabilities, ChatResult, Usage
from harness_common.core.context_view import about_summary, is_summary
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.message import Message, loads
from harness_common.core.step import COMPACT, CallOutcome, Compacted, ContextFull, ModelAnswered
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.core.values import replace
from harness_worker.steps.asking import first_model
from harness_worker.steps.context import StepContext
from harness_worker.steps.contract.answer import read_by
from harness_worker.steps.contract.terms import Terms, terms_of
from harness_worker.steps.policy import offered
from harness_worker.steps.registry import registry_of


async def recorded_answer(ctx: StepContext) -> ModelAnswered:
    """Return what the model answered in this step of the source run; raises `Permanent`."""
    row = await ctx.runtime.db.fetch_one("recorded_answer", _key(ctx))
    if row is None:
        raise Permanent(
            f"the source run has no model answer in step {ctx.number}", code="NOT_RECORDED"
        )
    message: Message = loads(row["body"])
    if message.tool_uses():
        summary = row["payload"] or {"finish": "tool_calls", "model": "recorded"}
        return ModelAnswered(message=message, finish=summary["finish"], model=summary["model"])
    summary = row["payload"] or {"finish": "stop", "model": "recorded"}
    answer = ModelAnswered(message=message, finish=summary["finish"], model=summary["model"])
    answer = await _in_form(ctx, answer, is_last=not row["more"])
    # An answer that was no final one, since a guard asked for another, is none here either.
    return replace(answer, finish="pause") if row["more"] else answer


async def _in_form(ctx: StepContext, answer: ModelAnswered, *, is_last: bool) -> ModelAnswered:
    """Return a recorded answer with what its contract makes of it, as when it was given: after the
    last one nobody can be asked again.
    """
    terms = replace(await _terms(ctx), is_last=is_last)
    read = read_by(terms, ChatResult(answer.message, Usage(), answer.finish, answer.model))
    if read.guidance.stop is not None and ctx.spec.guardrails.output:
        return answer  # what a guardrail made of an answer has no form to keep to
    return replace(answer, guidance=read.guidance)


async def _terms(ctx: StepContext) -> Terms:
    """Return the contract of the step; tools matter to it where they are asked for by text."""
    try:
        can = first_model(ctx).capabilities
    except (Invalid, Permanent):
        can = Capabilities(tools=True)
    by_text = ctx.spec.contract.actions == "always" or not can.tools
    tools = await offered(ctx, await registry_of(ctx)) if by_text else ()
    return terms_of(ctx, can, tools)


async def recorded_compaction_due(ctx: StepContext) -> ContextFull | None:
    """Return that a compaction comes next, if it did so in the source run; else None."""
    kind, summary = await _compaction(ctx)
    if kind != COMPACT and summary is None:
        return None
    return ContextFull("limit", 0, 0, 0)


async def recorded_compaction(ctx: StepContext) -> Compacted:
    """Return the compaction of this step of the source run."""
    _, summary = await _compaction(ctx)
    if summary is None:
        return Compacted("nothing")
    about = about_summary(summary)
    return Compacted(
        how=about["how"],
        message=summary,
        kept_from=about["from"],
        history_from=about["history_from"],
        covers=about["covers"],
    )


async def _compaction(ctx: StepContext) -> tuple[str | None, Message | None]:
    row = await ctx.runtime.db.fetch_one("recorded_compaction", _key(ctx))
    assert row is not None
    message = None if row["body"] is None else loads(row["body"])
    summary = message if message is not None and is_summary(message) else None
    return row["kind"], summary


async def recorded_outcomes(ctx: StepContext) -> tuple[CallOutcome, ...]:
    """Return how the calls of this step ended in the source run."""
    rows = await ctx.runtime.db.fetch("recorded_calls", _key(ctx))
    by_index = {row["idx"]: row for row in rows}
    return tuple(_outcome(call, by_index.get(call["idx"])) for call in ctx.calls)


def _key(ctx: StepContext) -> dict[str, object]:
    source = UUID(hex=ctx.run.overrides["recorded"])
    return {"tenant_id": ctx.run.tenant_id, "run_id": source, "step": ctx.number}


def _outcome(call: dict[str, object], row: dict[str, object] | None) -> CallOutcome:
    same = row is not None and all(row[k] == call[k] for k in ("name", "arguments"))
    index, use_id, name = int(str(call["idx"])), str(call["tool_use_id"]), str(call["name"])
    if row is None or not same or CallStatus(str(row["status"])) not in ENDED:
        text = f"Tool {name} was not run: the source run has no result of this call (dry run)."
        return CallOutcome(index, use_id, name, CallStatus.FAILED, text, "NOT_RECORDED")
    return CallOutcome(
        index=index,
        tool_use_id=use_id,
        name=name,
        status=CallStatus(str(row["status"])),
        content=str(row["result"] or ""),
        error_type=str(row["error_type"]) if row["error_type"] else None,
        trust="untrusted" if row["trust"] == "untrusted" else "trusted",
        effect=str(row["effect"]) if row["effect"] else None,
        tool_version=str(row["tool_version"]) if row["tool_version"] else None,
    )
