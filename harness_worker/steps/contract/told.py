"""What is said about an answer: to the model, in events, and when a run ends by its contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from harness_common.contracts.repair.log import Repair, counts, to_json
from harness_common.core import events as ev
from harness_common.core.doubt import CONTRACT
from harness_common.core.events import Event
from harness_common.core.guardrail import WITHHELD
from harness_common.core.guidance import Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json
from harness_common.core.stop_reasons import StopReason
from harness_worker.steps.contract.terms import Terms
from harness_worker.tools.validate import in_words

VIOLATED: Final = StopReason.CONTRACT_VIOLATED
_MAX_QUOTED_CHARS: Final = 2_000
_MAX_PROBLEMS: Final = 8

Problems = Sequence[tuple[str, str]]
"""Where and why an answer is not as it should be."""


def repaired(terms: Terms, of: str, repairs: Sequence[Repair], **more: Json) -> tuple[Event, ...]:
    """Put repairs on record."""
    if not repairs:
        return ()
    payload: dict[str, Json] = {
        "of": of,
        **more,
        "repairs": len(repairs),
        "kinds": counts(repairs),
        "repair_log": to_json(repairs, terms.clean),
    }
    return (Event(ev.ANSWER_REPAIRED, payload, terms.step),)


def refused(
    terms: Terms, of: str, problems: Problems, said: str, form: str, *, cut: bool = False
) -> Guidance:
    """Ask once more with the raw answer and the form that is wanted, or end the run."""
    problems = [(at, terms.clean(why)) for at, why in problems[:_MAX_PROBLEMS]]
    listed = in_words(problems)
    if cut:
        listed += "; it was cut off at the limit of one answer, so be brief"
    quoted = WITHHELD if terms.guarded else _quoted(terms.clean(said))
    told: dict[str, Json] = {
        "level": 2,
        "of": of,
        "problems": [{"at": at, "cause": why} for at, why in problems],
        "asked": terms.reasks,
        "of_asks": terms.spec.reasks,
    }
    event = Event(ev.ANSWER_REFUSED, told, terms.step)
    if terms.is_last or terms.reasks >= terms.spec.reasks:
        return Guidance(events=(event,), stop=VIOLATED, error=_error(terms, told, listed, quoted))
    memo = {"reasks": terms.reasks + 1} | ({"answering": True} if terms.answering else {})
    words = (
        f"Your answer cannot be used. What is wrong: {listed}.\n"
        f"You answered:\n{quoted}\n"
        f"{form}\nAnswer again in exactly this form."
    )
    return Guidance(messages=(hint(words),), events=(event,), again=True, memo={CONTRACT: memo})


def _error(terms: Terms, told: Mapping[str, Json], listed: str, quoted: str) -> dict[str, Json]:
    times = terms.reasks + 1
    return {
        "category": "permanent",
        "code": VIOLATED.upper(),
        "message": f"{times} answers in a row had not the form that was asked for; the last one: "
        f"{listed}",
        "detail": {
            "of": told["of"],
            "problems": told["problems"],
            "last_answer": quoted,
            "expected": terms.output_schema if told["of"] == "output" else "action",
            "next": "relax `output_schema`, raise `contract.reasks`, or use a stronger model; "
            "`harness runs retry` tries again",
        },
    }


def _quoted(text: str) -> str:
    if len(text) <= _MAX_QUOTED_CHARS:
        return text
    return f"{text[:_MAX_QUOTED_CHARS]}… ({len(text)} characters in all)"
