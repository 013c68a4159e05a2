"""Reading a final answer that has to fit the run's `output_schema`."""

from __future__ import annotations

from harness_common.contracts.model import ChatResult
from harness_common.contracts.output import canonical, output_prompt
from harness_common.contracts.repair.log import Log
from harness_common.contracts.repair.shape import Rules, shape
from harness_common.contracts.repair.text import Unreadable, read_object
from harness_common.core.doubt import CONTRACT
from harness_common.core.guidance import Guidance
from harness_common.core.message import Json
from harness_worker.steps.contract.read import Read
from harness_worker.steps.contract.terms import Terms
from harness_worker.steps.contract.told import Problems, refused, repaired
from harness_worker.tools.validate import schema_problems


def read_output(terms: Terms, answer: ChatResult, said: str | None = None) -> Read:
    """Return the output in canonical form, or what is to be done without one."""
    said = answer.message.text() if said is None else said
    cut = answer.finish == "length"
    log = Log()
    try:
        reading = read_object(said, may_close=not cut)
    except Unreadable as error:
        return _refused(terms, answer, said, [("", str(error))])
    log.repairs += reading.repairs
    value: Json = reading.value
    problems = schema_problems(terms.output_schema, value)
    if problems and terms.spec.repair:
        value = shape(value, terms.output_schema, log, Rules(drop_extra=True))
        problems = schema_problems(terms.output_schema, value)
    if not problems and log.repairs and not terms.spec.repair:
        problems = [("", "it is not exactly in the form that was asked for")]
    if problems:
        return _refused(terms, answer, said, problems)
    events = repaired(terms, "output", log.repairs)
    guidance = Guidance(events=events, memo={CONTRACT: None}, output=canonical(value))
    return Read(answer, guidance, tuple(log.repairs))


def _refused(terms: Terms, answer: ChatResult, said: str, problems: Problems) -> Read:
    form = output_prompt(terms.output_schema)
    cut = answer.finish == "length"
    return Read(answer, refused(terms, "output", problems, said, form, cut=cut))
