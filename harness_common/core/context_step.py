"""What follows from a prompt that does not fit, and from a compaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from harness_common.core import events as ev
from harness_common.core.budget import with_spent
from harness_common.core.context_view import CONTEXT, Compaction
from harness_common.core.ending import cancelled, charged, then, within_limits
from harness_common.core.events import Event
from harness_common.core.message import Json
from harness_common.core.run import PERMIT, RunState, Transition
from harness_common.core.step import COMPACT, MODEL, Compacted, ContextFull
from harness_common.core.values import replace

FULL: Final = "context_full"
"""The key of the memo that says why the coming compaction is needed, and in which turn it was: each
reason brings one compaction a turn, so that nothing goes round.
"""
OVERFLOW: Final = "CONTEXT_OVERFLOW"
"""The code of a provider's refusal of a prompt that is too long."""


def context_full(state: RunState, full: ContextFull, number: int) -> Transition:
    """Let a compaction come before the step, which is not counted: it has done nothing yet but to
    ask judges.
    """
    state = charged(state, full.spent)
    if state.cancel_requested:
        return cancelled(state)
    told: dict[str, Json] = {
        "why": full.why,
        "tokens": full.tokens,
        "limit": full.limit,
        "fixed": full.fixed,
    }
    memo = {k: v for k, v in state.memo.items() if k != PERMIT}
    memo[FULL] = {**told, "turn": state.turn}
    nxt = replace(state, next_kind=COMPACT, memo=memo)
    spent = with_spent({}, full.spent)
    return Transition(nxt, (Event(ev.CONTEXT_FULL, {**told, **spent}, number),))


def without_full(memo: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a memo without the reason for a compaction: the turn is over."""
    return {k: v for k, v in memo.items() if k != FULL} if FULL in memo else memo


def was_full(state: RunState) -> str | None:
    """Return why this turn's context was compacted already; None when it was not."""
    found = state.memo.get(FULL)
    return found["why"] if found is not None and found["turn"] == state.turn else None


def compacted(state: RunState, result: Compacted, number: int, now: datetime) -> Transition:
    """Put the summary behind the messages that there are; from now on the model is shown it."""
    nxt = replace(
        state,
        next_kind=MODEL,
        input_tokens=state.input_tokens + result.input_tokens,
        output_tokens=state.output_tokens + result.output_tokens,
        cost_usd=state.cost_usd + result.cost_usd,
    )
    told: dict[str, Json] = {
        "how": result.how,
        "covers": result.covers,
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
    }
    if result.message is not None:
        at = Compaction(nxt.messages + 1, result.kept_from, result.history_from)
        nxt = replace(nxt, messages=at.at, memo={**nxt.memo, CONTEXT: at.to_json()})
        told |= {"message": at.at, "kept_from": at.kept_from, "trust": result.message.trust}
        if at.history_from is not None:
            told["history_from"] = at.history_from
    if result.model is not None:
        told |= {
            "model": result.model,
            "input_tokens": result.input_tokens,
            "output_tokens": result.output_tokens,
            "cost_usd": result.cost_usd if result.priced else None,
        }
    if result.note:
        told["note"] = result.note
    events = (
        Event(ev.CONTEXT_COMPACTED, told, number),
        Event(ev.STEP_COMPLETED, {"kind": COMPACT}, number),
    )
    messages = () if result.message is None else (result.message,)
    done = Transition(nxt, events, messages, session_summary=result.session_summary)
    if state.cancel_requested:
        return then(done, cancelled(nxt))
    return within_limits(done, now)
