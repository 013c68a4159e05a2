"""An agent's guardrails in its model step: over what the user said before the model is asked, over
a final answer before it is committed.

The rails that need nothing but the text are pure (`core.guardrail`, `core.pii`); a plugin is a
function that the operator installed, a judge is another agent of the tenant, asked in this step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never

from harness_common.contracts.guardrails import (
    DenyRail,
    JudgeRail,
    LengthRail,
    PiiRail,
    PluginRail,
    Rail,
    SchemaRail,
)
from harness_common.contracts.output import canonical
from harness_common.contracts.stop_when import compile_pattern
from harness_common.core import events as ev
from harness_common.core.budget import Spent, with_spent
from harness_common.core.context_view import Shown, is_summary, section_of
from harness_common.core.errors import HarnessError
from harness_common.core.events import Event
from harness_common.core.guardrail import (
    ASKED_AGAIN,
    NOT_SHOWN,
    WITHHELD,
    Finding,
    Where,
    blocked,
    on_output,
    personal,
)
from harness_common.core.guidance import NOTHING, Guidance, summed
from harness_common.core.hints import is_hint
from harness_common.core.message import Block, Json, Message, Text, ToolResult
from harness_common.core.step import CallOutcome, ModelAnswered
from harness_common.core.values import replace
from harness_worker.steps.context import StepContext
from harness_worker.steps.judge import Judges
from harness_worker.steps.rail_plugins import ask_plugin
from harness_worker.tools.validate import schema_problems

RAILED: Final = "railed"
"""The key of `RunState.memo`: the number of hand-offs, and of the last message that has passed."""
_REFUSED_PAST: Final = "refused_past"
"""The key of `RunState.memo`: the messages of earlier runs that a rail refused in this one."""
_REMOVED: Final = "[removed]"
_QUESTION: Final = "ask_user"
_BY_FORM: Final = (DenyRail, LengthRail, PiiRail, SchemaRail)
"""Rails that need nothing but the text: asking them again costs nothing and gives the same."""
_OF_ANSWERS: Final = (LengthRail, SchemaRail, JudgeRail)
"""Rails that say what an answer has to be; the others say what nobody may keep."""
Paid = TypeVar("Paid", ModelAnswered, CallOutcome)
_NO_ANSWER: Final = ModelAnswered(Message("assistant", ()), "stop", "")


@dataclass(slots=True)
class Rails:
    """The guardrails of one model step, and what they have spent."""

    ctx: StepContext
    said: list[Guidance] = field(default_factory=list)
    judges: Judges = field(init=False)
    _unheard: Set[str] = frozenset()
    """Messages of earlier runs that rails are asked about in this step."""
    _refused: set[str] = field(init=False)
    _answered: ModelAnswered | None = None
    """The answer that was paid for."""

    def __post_init__(self) -> None:
        self.judges = Judges(self.ctx)
        self._refused = set(self.ctx.run.state.memo.get(_REFUSED_PAST, ()))

    async def input(self, shown: Sequence[Shown]) -> tuple[Shown, ...]:
        """Return the conversation as the model may see it; raises `GuardrailBlocked`.

        A rewriting rail looks at every message of the user each time, which costs no step a record:
        the same text gives the same. Only what is new can block, and is told of; what was said to
        an earlier run is withheld where a rail would block it by its form, and by any rail where
        that run was never answered: it may have ended before its rails were asked.
        """
        ctx, rails = self.ctx, self.ctx.spec.guardrails.input
        if not rails:
            return tuple(shown)
        before = seen = passed(ctx)
        known = set(self._refused)
        self._unheard = unheard(shown) if not before else frozenset()
        out = list[Shown]()
        for one, words in said_by_users(shown):
            if not words:
                out.append(one)
                continue
            number = int(one.origin) if one.origin.isdecimal() else 0  # 0: of an earlier run
            is_new = number > before
            seen = max(seen, number)
            out.append(await self._looked_at(one, words, rails, is_new))
        if seen != before:
            self.said.append(Guidance(memo={RAILED: [ctx.run.acting.hops, seen]}))
        if self._refused != known:
            self.said.append(Guidance(memo={_REFUSED_PAST: sorted(self._refused)}))
        return tuple(out)

    async def rewritten(self, shown: Sequence[Shown]) -> tuple[Shown, ...]:
        """Return the conversation as rewriting rails leave it, for a summary of it."""
        rails = self.ctx.spec.guardrails.input
        if not rails:
            return tuple(shown)
        if not passed(self.ctx) and any(not isinstance(rail, _BY_FORM) for rail in rails):
            # A summary stays: it holds nothing that rails have still to be asked about.
            self._refused |= unheard(shown)
        return tuple(
            [
                await self._looked_at(one, words, rails, False) if words else one
                for one, words in said_by_users(shown)
            ]
        )

    async def _looked_at(
        self, one: Shown, words: Mapping[int, str], rails: Sequence[Rail], is_new: bool
    ) -> Shown:
        """Return a message with what a user said in it as the rails let it pass."""
        message = one.message
        for at, text in words.items():
            passed_on = await self._passed_on(text, one.origin, rails, is_new)
            if passed_on != text:
                message = _with_words(message, at, passed_on)
        return one if message is one.message else Shown(message, one.origin)

    async def _passed_on(self, text: str, origin: str, rails: Sequence[Rail], is_new: bool) -> str:
        is_past = ":" in origin
        if origin in self._refused:
            return NOT_SHOWN
        for rail in rails:
            # What an earlier run was told may have passed no rail of this agent, or none at all.
            again = rail.action == "rewrite" or (is_past and isinstance(rail, _BY_FORM))
            if not (is_new or again or origin in self._unheard):
                continue
            finding = await self._check(rail, text, "input")
            if finding is None:
                continue
            if finding.action == "block" and is_new:
                raise blocked(finding, int(origin), self.judges.spent())
            if finding.action == "block" and is_past:
                self._refused.add(origin)
                return NOT_SHOWN
            if finding.text is not None:
                text = finding.text
                if is_new:
                    event = Event(ev.GUARDRAIL_REWROTE, finding.to_json(), self.ctx.number)
                    self.said.append(Guidance((), (event,)))
        return text

    async def output(
        self, answer: ModelAnswered, said: Guidance = NOTHING, *, ends: bool = False
    ) -> ModelAnswered:
        """Return a final answer as it may be given, with what the rails say of it.

        `said` is what the contract says of the answer: what it makes of it is looked at as it is
        given, and one that it does not take is kept, but need not be what an answer has to be. One
        that asks for tools is final when the run `ends` with it.
        """
        rails, self._answered = self.ctx.spec.guardrails, answer
        asks = answer.message.has_tool_uses()
        is_final = ends or (answer.finish in {"stop", "length", "tool_calls"} and not asks)
        if not rails.output or not is_final:
            return self.with_costs(answer)
        message, given = answer.message, said.output
        asked = self.ctx.run.state.memo.get(ASKED_AGAIN, 0)
        for rail in rails.output:
            if (said.again or said.stop) and isinstance(rail, _OF_ANSWERS):
                continue
            finding = await self._given(rail, message.text(), given)
            if finding is None:
                continue
            most = 0 if self.ctx.is_last_answer or asks else rails.ask_again_max
            ruled = on_output(finding, asked, most, self.ctx.number)
            self.said.append(ruled)
            if ruled.stop is not None:
                message = with_text(message, WITHHELD)
            if ruled.stop is not None or ruled.again:
                break
            if finding.text is not None:
                message, given = with_text(message, finding.text), None
        return self.with_costs(replace(answer, message=message))

    async def result(self, said: Guidance) -> Guidance:
        """Return what guards say of a round of calls, with what it makes the run's output as the
        rails let it pass: nobody can be asked for another. A dry run asks no judge.
        """
        output, is_dry = said.output, self.ctx.run.overrides.get("recorded")
        if output is None or not said.succeeds:
            return said
        for rail in self.ctx.spec.guardrails.output:
            if is_dry and isinstance(rail, JudgeRail):
                continue
            finding = await self._check(rail, output, "output", is_json=True)
            if finding is None:
                continue
            ruled = on_output(finding, 0, 0, self.ctx.number)
            self.said.append(ruled)
            if ruled.stop is not None:
                refused = replace(said, stop=None, output=None, succeeds=False)
                return summed([self.guidance, refused])
            assert finding.text is not None  # what rewrites has something to put in its place
            output = finding.text
        return summed([self.guidance, replace(said, output=output)])

    async def _given(self, rail: Rail, said: str, given: str | None) -> Finding | None:
        """Ask a rail about an answer: about the output that is made of it, if it is another, and by
        their form also about the words around that, which are kept too.
        """
        is_json = self.ctx.spec.output_schema is not None
        finding = await self._check(rail, said if given is None else given, "output", is_json)
        if finding is not None or given is None or not isinstance(rail, DenyRail | PiiRail):
            return finding
        around = await self._check(rail, said, "output")
        if around is None or around.text is None:
            return around
        return replace(around, text=given)

    def charge(self, error: HarnessError) -> None:
        """Put on an error that ends the attempt what was paid in it: judges, and an answer that is
        lost because a judge cannot look at it now.
        """
        lost = self.with_costs(self._answered or _NO_ANSWER)
        spent = Spent(lost.input_tokens, lost.output_tokens, lost.cost_usd)
        error.detail = with_spent(error.detail, spent)

    @property
    def guidance(self) -> Guidance:
        """Return what the rails say of the step, with which versions of judges said so."""
        pinned = self.judges.pinned()
        return summed([*self.said, Guidance(memo=pinned) if pinned else NOTHING])

    def with_costs(self, paid: Paid) -> Paid:
        """Put what the judges have cost on an answer or a call."""
        spent = self.judges
        if not spent.input_tokens:
            return paid
        return replace(
            paid,
            input_tokens=paid.input_tokens + spent.input_tokens,
            output_tokens=paid.output_tokens + spent.output_tokens,
            cost_usd=paid.cost_usd + spent.cost_usd,
        )

    async def _check(
        self, rail: Rail, text: str, where: Where, is_json: bool = False
    ) -> Finding | None:
        """Ask one rail; None lets the text pass. `is_json` says that it is read as JSON."""
        why: str
        rewritten: str | None = None
        match rail:
            case DenyRail() | PiiRail():
                why, rewritten = (_looked_within if is_json else _looked)(rail, text)
            case LengthRail():
                over = len(text) > rail.limit
                why = f"it has {len(text)} characters, and {rail.limit} are allowed" if over else ""
                rewritten = text[: rail.limit]
            case SchemaRail():
                why = _misfit(rail, text)
            case PluginRail():
                verdict = await ask_plugin(self.ctx, rail.name, text, where)
                rewritten = verdict.text
                why = "" if verdict.ok else verdict.why or "the plugin says no"
            case JudgeRail():
                why = await self.judges.ask(rail, text, where)
            case other:
                assert_never(other)
        if not why:
            return None
        return _finding(rail, where, rail.why or why, rewritten)


def passed(ctx: StepContext) -> int:
    """Return the number of the last message that the acting agent's rails have let pass."""
    hops = ctx.run.acting.hops
    known = ctx.run.state.memo.get(RAILED, [hops, 0])
    return int(known[1]) if known[0] == hops else 0


def unheard(shown: Sequence[Shown]) -> Set[str]:
    """Return which messages of users earlier runs have left without any answer of a model."""
    answered, found = set[str](), set[str]()
    for one, words in reversed(list(said_by_users(shown))):
        run, of_past, _ = one.origin.partition(":")
        if one.message.role == "assistant":
            answered.add(run)
        elif of_past and run not in answered and set(words.values()) - {NOT_SHOWN}:
            found.add(one.origin)
    return found


def said_by_users(shown: Iterable[Shown]) -> Iterator[tuple[Shown, Mapping[int, str]]]:
    """Return each message with what a person said in it: all of it (-1), and not the platform in
    its name, or the blocks that are answers to the model's questions.
    """
    asked: set[str] = set()
    for one in shown:
        message = one.message
        if uses := message.tool_uses():
            asked = {use.id for use in uses if use.name == _QUESTION}
        yield one, _words(message, asked)


def _words(message: Message, asked: Set[str]) -> Mapping[int, str]:
    if message.role == "tool":
        return {
            at: block.content
            for at, block in enumerate(message.content)
            if isinstance(block, ToolResult) and block.tool_use_id in asked and not block.is_error
        }
    by_platform = is_hint(message) or is_summary(message) or section_of(message) is not None
    return {} if message.role != "user" or by_platform else {-1: message.text()}


def _with_words(message: Message, at: int, words: str) -> Message:
    """Return a message with other words in the place of those that `said_by_users` has there."""
    if at < 0:
        return with_text(message, words)
    blocks = list(message.content)
    blocks[at] = replace(blocks[at], content=words)
    return replace(message, content=tuple(blocks))


def _finding(rail: Rail, where: Where, why: str, rewritten: str | None) -> Finding:
    name: str = rail.kind
    if isinstance(rail, PluginRail):
        name = f"plugin {rail.name}"
    elif isinstance(rail, JudgeRail):
        name = f"judge {rail.agent}"
    if rail.action != "rewrite":
        return Finding(name, where, rail.action, why)
    if rewritten is None:  # a rail that has nothing to put in its place
        return Finding(name, where, "block", why)
    return Finding(name, where, "rewrite", why, rewritten)


def _looked(rail: DenyRail | PiiRail, text: str) -> tuple[str, str]:
    """Return why a text may not pass, empty when it may, and the text without what is found."""
    if isinstance(rail, PiiRail):
        rewritten, kinds = personal(text, rail.kinds)
        return (f"it holds personal data ({', '.join(kinds)})" if kinds else ""), rewritten
    rewritten = text
    for pattern in rail.patterns:
        rewritten = compile_pattern(pattern).sub(_REMOVED, rewritten)
    return ("it holds what may not be said" if rewritten != text else ""), rewritten


def _looked_within(rail: DenyRail | PiiRail, text: str) -> tuple[str, str]:
    """Look at each text of a JSON value as well, as whoever parses it reads it: the sign for
    a line break ends in a letter, which hides where the next word begins.
    """
    found: list[str] = []

    def looked(value: Json) -> Json:
        match value:
            case str():
                why, value = _looked(rail, value)
                found.extend([why] if why else [])
            case dict():
                value = {key: looked(one) for key, one in value.items()}
            case list():
                value = [looked(one) for one in value]
        return value

    try:
        cleaned = canonical(looked(json.loads(text)))
    except ValueError:
        return _looked(rail, text)
    why, rewritten = _looked(rail, cleaned if found else text)
    return why or "".join(found[:1]), rewritten


def blotted(rails: Iterable[Rail], text: str) -> str:
    """Return a text without what rails find by its form, for records beside the answer itself;
    also where a piece of JSON is cut, so that nobody can parse it.
    """
    for rail in rails:
        if isinstance(rail, DenyRail | PiiRail):
            plain = text.replace("\\n", "\n").replace("\\t", "\t")
            why, found = _looked(rail, plain)
            text = found if why else text
    return text


def _misfit(rail: SchemaRail, text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as problem:
        return f"it is not JSON ({problem})"
    found = schema_problems(rail.json_schema, value, "answer")
    return "; ".join(f"`{path}`: {cause}" for path, cause in found)


def with_text(message: Message, text: str) -> Message:
    """Return a message with another text in the place of its own."""
    others: list[Block] = [b for b in message.content if not isinstance(b, Text)]
    return replace(message, content=(Text(text), *others))
