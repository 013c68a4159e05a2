"""A cancel that comes while a resumed write is under way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.store.play import say


async def test_a_resumed_intent_can_be_given_up(play, db):
    """INV9: with `resume_at` left set, an effect would stay `running` after the cancel."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    run = await play.claim(run_id)
    first, second = uuid4(), uuid4()
    key = {"tenant_id": play.tenant_id, "run_id": run_id, "step": 2, "idx": 0}

    async def intend(attempt, prior, status):
        intent = {
            "version": run.version,
            "fence": run.fence,
            "claim_id": run.claim_id,
            "attempt_id": attempt,
            "prior_attempt_id": prior,
            "from_status": [status],
            "effect": "write",
            "tool_version": "1",
            "fingerprint": "",
            "ran_arguments": None,
            "served_by": None,
            "payload": "{}",
            "policy": None,
            "approval_id": None,
            "approval_digest": None,
        }
        return await db.fetch("call_intent", key | intent)

    assert await intend(first, None, "proposed")
    waits = {
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
    }
    await db.fetch("call_result", key | waits)
    assert await intend(second, first, "running")
    given_up = {"attempt_id": second, "status": "unknown", "why": "cancel"}
    assert await db.fetch("call_give_up", key | given_up)
