"""Reading an answer by the action schema: a call, the word that the answer comes next, or nothing
that may be used.
"""

from __future__ import annotations

from dataclasses import replace

from harness_common.contracts.action import (
    CALL_OF_ACTION,
    RESPOND,
    Action,
    Illegal,
    Reader,
    action_prompt,
    hedged,
)
from harness_common.contracts.model import ChatResult, ToolDef
from harness_common.contracts.output import compact
from harness_common.contracts.repair.log import Log, moved
from harness_common.contracts.repair.text import Unreadable
from harness_common.core.doubt import CONTRACT
from harness_common.core.errors import Invalid
from harness_common.core.guidance import Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json, Text, ToolUse
from harness_worker.steps.contract.arguments import shaped
from harness_worker.steps.contract.output import read_output
from harness_worker.steps.contract.read import Calls, Read
from harness_worker.steps.contract.terms import Terms
from harness_worker.steps.contract.told import Problems, refused, repaired
from harness_worker.tools.validate import validate_arguments

_ANSWERS = ("answer", "response", "text", "final_answer", "content", "message", "output")


def read_action(terms: Terms, answer: ChatResult) -> Read:
    """Read an answer; what the model said literally stays in the message."""
    said = answer.message.text()
    try:
        action = _reader(terms).read(said)
        if action.repairs and not terms.spec.repair:
            raise Illegal([("", "it is not exactly in the form that was asked for")], ())
    except Unreadable as error:
        return _refused(terms, answer, [("", str(error))])
    except Illegal as error:
        return _refused(terms, answer, error.problems)
    if action.name == RESPOND:
        return _respond(terms, answer, action)
    return _call(terms, answer, action)


def _reader(terms: Terms) -> Reader:
    spec = terms.spec
    return Reader(
        tuple(terms.tools),
        terms.writes,
        spec.synonyms,
        spec.hedges,
        spec.default_confidence,
        terms.hidden,
    )


def _call(terms: Terms, answer: ChatResult, action: Action) -> Read:
    spec = terms.tools[action.name]
    log = Log()
    arguments = shaped(spec, action.input, log) if terms.spec.repair else action.input
    log.repairs[:] = [*action.repairs, *moved(log.repairs, "/action/input")]
    try:
        validate_arguments(spec, action.input if arguments is None else arguments)
    except Invalid as error:
        problems = [
            (f"/action/input/{p['path']}", str(p["cause"])) for p in error.detail["problems"]
        ]
        return _refused(terms, answer, problems)
    calls = Calls(terms)
    calls.uses.append(ToolUse(f"{CALL_OF_ACTION}{terms.step}", action.name, arguments))
    calls.repairs += log.repairs
    about = {"call": f"{terms.step + 1}.0", "tool": action.name}
    calls.events += repaired(terms, "action", log.repairs, **about)
    if why := _doubt(terms, action):
        calls.doubt(0, action.name, why)
    return calls.read(answer, (Text(answer.message.text()),))


def _doubt(terms: Terms, action: Action) -> str | None:
    if action.confidence < terms.spec.min_confidence:
        return f"its confidence is {action.confidence:g}, below {terms.spec.min_confidence:g}"
    word = hedged(action.thought, terms.spec.hedges)
    return None if word is None else f"the model says {word!r}"


def _respond(terms: Terms, answer: ChatResult, action: Action) -> Read:
    """Take the answer that a model gave at once, or ask for it."""
    events = repaired(terms, "action", action.repairs)
    given = _given(action.input)
    if given is not None:
        text = given if isinstance(given, str) else compact(given)
        if terms.output_schema is not None:
            read = read_output(terms, answer, text)
        else:
            read = Read(answer, Guidance(output=text, memo={CONTRACT: None}))
        guidance = replace(read.guidance, events=events + read.guidance.events)
        return replace(read, guidance=guidance, repairs=action.repairs + read.repairs)
    words = "Now give your answer itself, as the user will read it, and no action."
    if terms.output_schema is not None:
        words = "Now give your answer itself: the JSON object of the schema, and no action."
    guidance = Guidance(
        messages=(hint(words),),
        events=events,
        again=True,
        memo={CONTRACT: {"answering": True, "reasks": 0}},
    )
    return Read(answer, guidance, action.repairs)


def _given(said: dict[str, Json]) -> Json:
    if len(said) != 1:
        return None
    return next((v for k, v in said.items() if k.casefold() in _ANSWERS and v), None)


def _refused(terms: Terms, answer: ChatResult, problems: Problems) -> Read:
    tools = [ToolDef(t.name, t.description, t.input_schema) for t in terms.tools.values()]
    form = action_prompt(tools)
    guidance = refused(
        terms, "action", problems, answer.message.text(), form, cut=answer.finish == "length"
    )
    return Read(answer, guidance)
