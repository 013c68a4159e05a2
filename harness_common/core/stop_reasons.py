"""Why a run ended: every reason there is, and what each means in plain words.

A run has one from its end on (`runs.stop_reason`). Rules, guards and whatever else ends a run take
it from here; the API lists them in its schema, the CLI tells them in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class StopReason(StrEnum):
    """One word for why a run ended."""

    FINAL_ANSWER = "final_answer"
    LENGTH = "length"
    STOP_CONDITION = "stop_condition"
    CANCELLED = "cancelled"
    MAX_ITERATIONS = "max_iterations_exceeded"
    TOKEN_BUDGET = "token_budget_exceeded"  # noqa: S105 - tokens of a model
    COST_BUDGET = "cost_budget_exceeded"
    DEADLINE = "deadline_exceeded"
    DEAD_LOOP = "dead_loop"
    PING_PONG = "ping_pong"
    NO_PROGRESS = "no_progress"
    DENIED_REPEATEDLY = "denied_repeatedly"
    GUARDRAIL_BLOCKED = "guardrail_blocked"
    CONTRACT_VIOLATED = "contract_violated"
    REFUSAL = "refusal"
    CHILD_FAILED = "child_failed"
    NODE_FAILED = "node_failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    ERROR = "error"
    POISONED = "poisoned"


PLAIN_WORDS: Final[Mapping[StopReason, str]] = {
    StopReason.FINAL_ANSWER: "the model gave its final answer",
    StopReason.LENGTH: "the model's last answer was cut at the longest it may be",
    StopReason.STOP_CONDITION: "a condition that the agent declares in stop_when was met",
    StopReason.CANCELLED: "somebody asked to stop it",
    StopReason.MAX_ITERATIONS: "it used up the model answers that it may take (max_turns)",
    StopReason.TOKEN_BUDGET: "it, or a child that spends its budget, used up its tokens",
    StopReason.COST_BUDGET: "it, or a child that spends its budget, used up its money",
    StopReason.DEADLINE: "the time for it was over",
    StopReason.DEAD_LOOP: "the model went on with the same calls, to the same results, after it "
    "was told to try another way",
    StopReason.PING_PONG: "the model went round in a circle of the same calls after it was told so",
    StopReason.NO_PROGRESS: "round after round of tool calls brought nothing new",
    StopReason.DENIED_REPEATEDLY: "the model kept asking for what it may not have",
    StopReason.GUARDRAIL_BLOCKED: "a guardrail of the agent refused what was said",
    StopReason.CONTRACT_VIOLATED: "the model's answers kept not having the form that its contract "
    "asks for",
    StopReason.REFUSAL: "the model refused to answer",
    StopReason.CHILD_FAILED: "a child failed that was to take it along",
    StopReason.NODE_FAILED: "a node of its graph failed, and the graph does not go on without it",
    StopReason.RETRIES_EXHAUSTED: "a step kept failing, also when it was tried again",
    StopReason.ERROR: "a step failed in a way that trying again does not change",
    StopReason.POISONED: "it kept killing the worker processes that held it",
}


def in_words(reason: str) -> str:
    """Say a stop reason in plain words; one of a newer server as it stands."""
    try:
        return PLAIN_WORDS[StopReason(reason)]
    except ValueError:
        return reason.replace("_", " ")
