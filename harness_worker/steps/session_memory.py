"""What a session is to remember of a run, as of its final answer or a compaction."""

from __future__ import annotations

from harness_common.core.ids import encode
from harness_common.core.session_summary import session_summary
from harness_common.core.step import ModelAnswered
from harness_common.redaction import redactor
from harness_worker.steps.context import StepContext


async def after_answer(ctx: StepContext, answer: ModelAnswered) -> str | None:
    """Return the session's summary with this run's answer; None when the run goes on, or ends
    without one that its guards accept.
    """
    said = answer.guidance
    if answer.message.has_tool_uses() or answer.finish not in {"stop", "length"}:
        return None
    if said.again or said.stop or said.next_kind:
        return None
    return await remembered(ctx, answer.message.text() if said.output is None else said.output)


async def remembered(ctx: StepContext, said: str) -> str:
    """Return the session's summary with what this run says of itself."""
    run = ctx.run
    if run.prev_run_id is None and ctx.first == 1 and ctx.messages:
        before, asked = None, ctx.messages[0].text()  # the first run of its session: nothing to ask
    else:
        row = await ctx.runtime.db.fetch_one(
            "session_memory", {"tenant_id": run.tenant_id, "run_id": run.id}
        )
        assert row is not None
        before, asked = row["memory_summary"], row["input"]
    # Cleaned before it is cut: what stands for a secret may be longer than the secret.
    asked, said = (redactor.clean(run.tenant_id, text) for text in (asked, said))
    return session_summary(before, encode("run", run.id), asked, said)
