"""Dry runs: what the model said and the tools gave in the source run, instead of asking them again.

Nothing outside is called. A run that asks for something else than its source did is told that it is
not on record.
"""

from __future__ import annotations

from uuid import UUID

from harness_common.core.context_view import about_summary, is_summary
from harness_common.core.errors import Permanent
from harness_common.core.message import Message, loads
from harness_common.core.step import COMPACT, CallOutcome, Compacted, ContextFull, ModelAnswered
from harness_common.core.tool_call import ENDED, CallStatus
from harness_common.core.values import replace
from harness_worker.steps.context import StepContext


async def recorded_answer(ctx: StepContext) -> ModelAnswered:
    """Return what the model answered in this step of the source run; raises `Permanent`."""
    row = await ctx.runtime.db.fetch_one("recorded_answer", _key(ctx))
    if row is None:
        raise Permanent(
            f"the source run has no model answer in step {ctx.number}", code="NOT_RECORDED"
        )
    message: Message = loads(row["body"])
    summary = row["payload"]
    if summary is not None:
        # An answer that was no final one, since a guard asked for another, is none here either.
        answer = ModelAnswered(message=message, finish=summary["finish"], model=summary["model"])
        goes_on = row["more"] and not message.tool_uses()
        return replace(answer, finish="pause") if goes_on else answer
    if message.tool_uses():
        return ModelAnswered(message=message, finish="tool_calls", model="recorded")
    return ModelAnswered(
        message=message, finish="pause" if row["more"] else "stop", model="recorded"
    )


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
