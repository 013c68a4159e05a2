"""Repairs of a call's arguments before it is proposed, so that what is approved is what runs."""

from __future__ import annotations

from dataclasses import replace

from harness_common.contracts.action import CALL_OF_TEXT
from harness_common.contracts.model import ChatResult
from harness_common.contracts.output import compact
from harness_common.contracts.repair.calls import TextCall, has_marks, text_calls
from harness_common.contracts.repair.log import NAME, Log, Repair
from harness_common.contracts.repair.names import find_name
from harness_common.contracts.repair.shape import Rules, shape
from harness_common.contracts.repair.text import Unreadable, read_object
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.errors import Invalid
from harness_common.core.message import Json, Text, ToolUse
from harness_worker.steps.contract.read import Calls, Read
from harness_worker.steps.contract.terms import Terms
from harness_worker.steps.contract.told import refused, repaired
from harness_worker.tools.validate import validate_arguments

_FORM = "Ask for a tool by a tool call and not in the words of your answer."


def read_calls(terms: Terms, answer: ChatResult, hedge: str | None) -> Read:
    """Read the native tool calls of an answer: names and arguments that are nearly right are
    repaired; what is not is left for the runner to refuse.
    """
    calls = Calls(terms)
    for index, use in enumerate(answer.message.tool_uses()):
        _take(calls, index, use, cut=answer.finish == "length")
        if hedge is not None:
            calls.doubt(index, calls.uses[-1].name, f"the model says {hedge!r}")
    beside = [b for b in answer.message.content if not isinstance(b, ToolUse)]
    return calls.read(answer, beside)


def read_text_calls(terms: Terms, answer: ChatResult) -> Read | None:
    """Read calls that a model wrote into its text in the marks of some server; None without any."""
    said = answer.message.text()
    if not has_marks(said):
        return None
    calls = Calls(terms)
    try:
        found = text_calls(said)
        for index, call in enumerate(found):
            log = Log()
            use = _use_of(terms, index, call, said, log)
            if use.name not in terms.tools and not find_name(use.name, terms.tools):
                return None  # it tells of calls, and makes none
            _take(calls, index, use, before=log.repairs)
    except Unreadable as error:
        cut = answer.finish == "length"
        problems = [("", f"it has a tool call in its text, and {error}")]
        return Read(answer, refused(terms, "call", problems, said, _FORM, cut=cut))
    return calls.read(answer, (Text(said),)) if found else None


def _use_of(terms: Terms, index: int, call: TextCall, said: str, log: Log) -> ToolUse:
    whole: Json = call.arguments
    whole = log.text("call_in_text", said, whole if isinstance(whole, str) else compact(whole))
    reading = read_object(whole)
    log.repairs += reading.repairs
    name: Json = call.name
    value: Json = reading.value
    if name is None:
        whole = value
        name = whole.get("name", whole.get("tool"))
        keys = ("arguments", "parameters", "input", "args")
        value = next((whole[k] for k in keys if k in whole), {})
        log.value("", "field_form", whole, value)
    if isinstance(value, str):
        inner = read_object(value)
        kind = "syntax" if any(r.is_guess for r in inner.repairs) else "nested_json"
        value = log.value("", kind, value, inner.value)
    if not isinstance(name, str) or not isinstance(value, dict):
        raise Unreadable("unreadable", "a call has a name and arguments")
    return ToolUse(f"{CALL_OF_TEXT}{terms.step}_{index}", name, value)


def _take(
    calls: Calls, index: int, use: ToolUse, *, cut: bool = False, before: list[Repair] | None = None
) -> None:
    """Repair one call as far as that goes, and put it on record."""
    repairs = list(before or ())
    terms = calls.terms
    if terms.spec.repair and not cut:
        use, more = repair_call(terms, use, guessed=any(r.is_guess for r in repairs))
        repairs += more
    calls.uses.append(use)
    calls.repairs += repairs
    about = {"call": f"{terms.step + 1}.{index}", "tool": use.name}
    calls.events += repaired(terms, "arguments", repairs, **about)


def repair_call(
    terms: Terms, use: ToolUse, *, guessed: bool = False
) -> tuple[ToolUse, list[Repair]]:
    """Return the call as it was meant, with the repairs; as it is when that is not plain.

    `guessed` says that reading it took a guess already: then no tool that changes something is
    called with it.
    """
    log = Log()
    spec = terms.tools.get(use.name)
    if spec is None and use.name in terms.hidden:
        return use, []
    if spec is None:
        match = find_name(use.name, terms.tools, terms.spec.synonyms)
        if match is None:
            return use, []
        spec = terms.tools[match.name]
        log.value(NAME, f"name_{match.how}", use.name, match.name)
    arguments = _arguments(use, log)
    if arguments is None:
        return use, []
    arguments = shaped(spec, arguments, log)
    risky = guessed or any(r.is_guess for r in log.repairs)
    if arguments is None or (risky and spec.effect is not EffectClass.READ):
        return use, []
    return replace(use, name=spec.name, input=arguments, raw=None), log.repairs


def _arguments(use: ToolUse, log: Log) -> Json:
    if use.raw is None:
        return use.input
    try:
        reading = read_object(use.raw)
    except Unreadable:
        return None
    log.repairs += reading.repairs
    if not reading.repairs:  # the provider's reader takes less than ours: one value and no more
        log.value("", "nested_json", use.raw, reading.value)
    return reading.value


def shaped(spec: ToolSpec, arguments: Json, log: Log) -> Json:
    """Return arguments that the schema allows; None when they cannot be brought into its form."""
    try:
        validate_arguments(spec, arguments)
    except Invalid:
        mark = len(log.repairs)
        after = shape(arguments, spec.input_schema, log, Rules(spec.effect is EffectClass.READ))
        try:
            validate_arguments(spec, after)
        except Invalid:
            del log.repairs[mark:]
            return None
        return after
    return arguments
