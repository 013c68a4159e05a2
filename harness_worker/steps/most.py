"""The most that a step may take of models beside the agent's own answer: judges, summaries, nodes
of a graph. The day's budget has to have room for it before they are asked (`budgets`).
"""

from __future__ import annotations

import math
from typing import Final

from harness_common.contracts.guardrails import JudgeRail
from harness_common.contracts.model import Usage
from harness_common.core.context_summary import instructions
from harness_common.core.context_view import Shown
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.graph import MODEL_CALL
from harness_common.core.tokens import BYTES_PER_TOKEN, json_bytes, messages_tokens, text_bytes
from harness_common.core.tool_call import ENDED, CallStatus
from harness_worker.context.summarise import MOST_CALLS
from harness_worker.steps.compact import piece_tokens
from harness_worker.steps.context import StepContext
from harness_worker.steps.guardrails import passed, said_by_users, unheard
from harness_worker.steps.judge import Judges
from harness_worker.steps.node_model import chain_of, request_of
from harness_worker.steps.summary_call import SummaryCalls

_LEAST_BYTES: Final = 3
"""Bytes of UTF-8 that a token has at the least, so that an estimate is high: English has about four
to a token, and a Chinese character, which is a token or more, has three.
"""
_QUESTION_TOKENS: Final = 50
"""What stands around a piece of a record that is to be summarised."""

_TOLD_TOKENS: Final = 1_500
"""What a model is told of an answer that had not its form: what was wrong, and the answer again."""

Most = tuple[str, Usage]
"""A model as an agent names it, and what it may take."""


def most_of(estimated: int) -> int:
    """Return the most tokens that a text of so many (by `core.tokens`) may have."""
    return -(-estimated * BYTES_PER_TOKEN // _LEAST_BYTES)


async def most_of_judges(ctx: StepContext) -> list[Most]:
    """Return what the judges of a model step may take: of what users have said since they were
    asked last, and of the answer.
    """
    rails, judges = ctx.spec.guardrails, Judges(ctx)
    said = [text_bytes(text) for text in _new_texts(ctx)] if rails.input else []
    answer = [ctx.spec.max_output_tokens * _LEAST_BYTES]
    found = list[Most]()
    for rail, texts in [*((r, said) for r in rails.input), *((r, answer) for r in rails.output)]:
        if not isinstance(rail, JudgeRail):
            continue
        try:
            spec = await judges.spec(rail.agent)
        except Permanent:
            continue  # whoever asks it says so
        for chars in texts:
            asked, calls = judges.chars_for(spec, rail, chars)
            tokens = asked // _LEAST_BYTES + calls
            found.append((spec.model, Usage(tokens, calls * spec.max_output_tokens)))
    return found


def _new_texts(ctx: StepContext) -> list[str]:
    before = passed(ctx)
    numbered = (Shown(m, str(n)) for n, m in enumerate(ctx.messages, ctx.first))
    new = [words for one, words in said_by_users(numbered) if int(one.origin) > before]
    late = frozenset() if before else unheard(ctx.past)
    new += [words for one, words in said_by_users(ctx.past) if one.origin in late]
    return [text for words in new for text in words.values()]


def most_of_summaries(ctx: StepContext) -> list[Most]:
    """Return what a compaction may take: all pieces of the conversation, and their summaries in
    turn.
    """
    rules = ctx.spec.context
    calls = SummaryCalls(ctx, rules.summary_tokens)
    try:
        model = calls.model()
    except (Invalid, Permanent):
        return []  # nobody is asked then
    if rules.strategy != "summarise" or model.capabilities.scripted:
        return []
    piece = piece_tokens(ctx, calls, model)
    asked = len(instructions(rules.summary_tokens)) // _LEAST_BYTES + _QUESTION_TOKENS
    size, left = most_of(messages_tokens(ctx.history + ctx.messages)), MOST_CALLS
    tokens_in = tokens_out = 0
    while left > 0:
        pieces = min(left, math.ceil(size / piece))
        tokens_in += size + pieces * asked
        tokens_out += pieces * calls.most_tokens()
        left -= pieces
        if pieces == 1:
            break
        size = pieces * rules.summary_tokens
    return [(calls.name, Usage(tokens_in, tokens_out))]


def most_of_nodes(ctx: StepContext) -> tuple[int, float]:
    """Return the most tokens and money that the model nodes of the coming step may take."""
    tokens, cost_usd = 0, 0.0
    prices = ctx.runtime.models.prices
    for row in ctx.calls:
        if row["name"] != MODEL_CALL or CallStatus(row["status"]) in ENDED:
            continue
        request = request_of(ctx, row["arguments"])
        form = row["arguments"].get("output_schema")
        form_bytes = json_bytes(form) if form is not None else 0
        size = text_bytes(request.system) + text_bytes(row["arguments"]["prompt"]) + form_bytes
        asks = 1 + ctx.spec.contract.reasks if form is not None else 1
        # Each that is asked again has the answer before it in its prompt, and what is said of it.
        more = request.max_tokens + form_bytes // _LEAST_BYTES + _TOLD_TOKENS
        tokens_in = asks * (size // _LEAST_BYTES + 1) + asks * (asks - 1) // 2 * more
        usage = Usage(tokens_in, asks * request.max_tokens)
        tokens += usage.input_tokens + usage.output_tokens
        chain = chain_of(ctx, row["arguments"])
        cost_usd += max(prices.cost_usd(name, usage) or 0.0 for name in chain)
    return tokens, cost_usd
