"""Write tool whose cancel comes while its known result is being recorded; and a cancel of a resumed write (resume_at still set)."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.store.play import say


async def test_give_up_after_a_resumed_intent(play, db):
    """call_give_up wants resume_at IS NULL, call_intent leaves it set: a cancelled effect is not marked unknown (INV9)."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    run = await play.claim(run_id)
    first, second = uuid4(), uuid4()
    base = {"tenant_id": play.tenant_id, "run_id": run_id, "step": 2, "idx": 0}

    async def intend(att, prior, frm):
        return await db.fetch(
            "call_intent",
            base
            | {
                "version": run.version,
                "fence": run.fence,
                "claim_id": run.claim_id,
                "attempt_id": att,
                "prior_attempt_id": prior,
                "from_status": [frm],
                "effect": "write",
                "tool_version": "1",
                "fingerprint": "",
                "payload": "{}",
            },
        )

    assert await intend(first, None, "proposed")
    await db.fetch(
        "call_result",
        base
        | {
            "attempt_id": first,
            "status": "running",
            "result": "",
            "error_type": None,
            "trust": "trusted",
            "artifacts": [],
            "duration_ms": 1.0,
            "cost_usd": 0.0,
            "resume_at": datetime.now(UTC) - timedelta(seconds=1),
            "evidence": "{}",
        },
    )
    assert await intend(second, first, "running")
    rows = await db.fetch(
        "call_give_up", base | {"attempt_id": second, "status": "unknown", "why": "cancel"}
    )
    assert rows, "an effect in flight stays `running` after the cancel"
