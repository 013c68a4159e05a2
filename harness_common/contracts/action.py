"""The action schema: how a model without tool calls asks for a tool, and how its answer is read.

An answer is `{"thought": …, "action": {"name": …, "input": {…}, "confidence": …}}`, its name one of
a whitelist. `respond_directly` with `{}` says that the answer itself comes next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.contracts.model import ToolDef
from harness_common.contracts.repair.calls import call_text, text_calls
from harness_common.contracts.repair.log import ABSENT, Log, Repair
from harness_common.contracts.repair.names import find_name, plain_name
from harness_common.contracts.repair.numbers import read_number
from harness_common.contracts.repair.text import Unreadable, read_object
from harness_common.core.message import Json, ToolUse

RESPOND: Final = "respond_directly"
MAX_THOUGHT_CHARS: Final = 100
_RESPONDS: Final = (
    "respond", "answer", "final_answer", "finalanswer", "final", "finish", "direct_response",
    "respond_to_user", "reply", "none", "no_tool",
)  # fmt: skip
_THOUGHT: Final = ("thoughts", "reasoning", "reason", "rationale", "思考")
_ACTION: Final = ("tool", "tool_call", "function", "function_call", "tool_use", "act")
_NAME: Final = ("tool", "tool_name", "function", "function_name", "action", "action_name", "type")
_INPUT: Final = (
    "arguments", "args", "parameters", "params", "action_input", "tool_input", "inputs", "kwargs",
)  # fmt: skip
_CONFIDENCE: Final = ("certainty", "score", "conf", "probability", "置信度")
_LEVELS: Final = {"very high": 0.95, "high": 0.9, "medium": 0.6, "moderate": 0.6, "low": 0.2,
                  "very low": 0.1, "高": 0.9, "中": 0.6, "低": 0.2}  # fmt: skip


CALL_OF_ACTION: Final = "action_"
CALL_OF_TEXT: Final = "text_"
"""How the ids of calls begin that were read out of an answer's text."""


def is_from_text(use: ToolUse) -> bool:
    """Tell whether the text beside a call is the call itself."""
    return use.id.startswith((CALL_OF_ACTION, CALL_OF_TEXT))


@dataclass(frozen=True, slots=True)
class Action:
    """What the model wants done. `name` is in the whitelist."""

    thought: str
    name: str
    input: dict[str, Json]
    confidence: float
    repairs: tuple[Repair, ...] = ()


class Illegal(ValueError):
    """An answer that can be read, and is no action: which fields are wrong, as (pointer, cause)."""

    def __init__(self, problems: Sequence[tuple[str, str]], repairs: Sequence[Repair]) -> None:
        super().__init__("; ".join(f"{at}: {why}" for at, why in problems))
        self.problems, self.repairs = tuple(problems), tuple(repairs)


def action_schema(names: Sequence[str]) -> dict[str, Json]:
    """Return the form of an answer as JSON Schema."""
    action = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [*names, RESPOND]},
            "input": {"type": "object"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["name", "input", "confidence"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "thought": {"type": "string", "maxLength": MAX_THOUGHT_CHARS},
            "action": action,
        },
        "required": ["thought", "action"],
        "additionalProperties": False,
    }


def action_prompt(tools: Sequence[ToolDef]) -> str:
    """Tell a model how to answer: the form, the whitelist, and that nothing else is taken."""
    listed = "\n".join(
        f"- {t.name}: {' '.join(t.description.split())}\n  input: "
        f"{json.dumps(t.input_schema, ensure_ascii=False, separators=(',', ':'))}"
        for t in tools
    )
    names = ", ".join([*(t.name for t in tools), RESPOND])
    return (
        "Answer with one JSON object and nothing else: no words before or after it, no code "
        "fence, no comment.\n"
        '{"thought": "why, at most 100 characters", "action": {"name": "…", "input": {…}, '
        '"confidence": 0.0 to 1.0}}\n'
        f"`name` is exactly one of: {names}. There are no other actions, and no other fields: an "
        "answer with any other is refused. Ask for one action at a time; its result comes back to "
        "you before the next.\n"
        f"`input` holds the arguments of that action by its schema. Use {RESPOND} with the input "
        "{} when you need no action any more: you are then asked for your answer.\n"
        f"The actions are:\n{listed or '(none)'}\n- {RESPOND}: you can answer now.\n  input: {{}}"
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """How actions are read: the whitelist, other names for it, how unsure a silent model is."""

    names: tuple[str, ...]
    writes: frozenset[str] = frozenset()
    """Tools for which nothing is guessed."""
    synonyms: Mapping[str, str] | None = None
    hedges: tuple[str, ...] = ()
    default_confidence: float = 0.7
    hidden: frozenset[str] = frozenset()
    """Names that mean no other tool, although they are not in the whitelist now."""

    def read(self, text: str) -> Action:
        """Read an answer; raises `Unreadable` and `Illegal`."""
        log = Log()
        value = _object(text, log)
        action = _nested(value, log)
        thought = self._thought(value, log)
        name = self._name(action, log)
        arguments = _input(action, log)
        confidence = self._confidence(action, thought, log)
        for field in [k for k in action if k not in {"name", "input", "confidence"}]:
            log.value(f"/action/{_escaped(field)}", "extra_field", action.pop(field), ABSENT)
        for field in [k for k in value if k not in {"thought", "action"}]:
            log.value(f"/{_escaped(field)}", "extra_field", value.pop(field), ABSENT)
        repairs = tuple(log.repairs)
        problems = []
        if name is None:
            problems.append(("/action/name", self._unknown(action.get("name"))))
        elif name in self.writes and (bad := [r.kind for r in repairs if _is_risky(r)]):
            problems.append(
                ("", f"{name} changes something, and the answer is only nearly readable ({bad[0]})")
            )
        if arguments is None:
            problems.append(("/action/input", "must be an object"))
        if problems or name is None or arguments is None:
            raise Illegal(problems, repairs)
        return Action(thought, name, arguments, confidence, repairs)

    def _unknown(self, said: Json) -> str:
        known = ", ".join([*self.names, RESPOND])
        what = "is missing" if said is None else f"{json.dumps(said)[:80]} is no action"
        return f"{what}; it must be one of: {known}"

    def _thought(self, value: dict[str, Json], log: Log) -> str:
        _rename(value, "thought", _THOUGHT, "", log)
        thought = value.get("thought")
        if thought is None:
            value["thought"] = thought = log.value(
                "/thought", "missing_field", None if "thought" in value else ABSENT, ""
            )
        if not isinstance(thought, str):
            thought = log.value("/thought", "coerced", thought, json.dumps(thought))
        if len(thought) > MAX_THOUGHT_CHARS:
            thought = log.value("/thought", "too_long", thought, thought[:MAX_THOUGHT_CHARS])
        value["thought"] = thought
        return str(thought)

    def _name(self, action: dict[str, Json], log: Log) -> str | None:
        said = action.get("name")
        known = (*self.names, RESPOND)
        if said in known:
            return str(said)
        if not isinstance(said, str) or said in self.hidden:
            return None
        synonyms = {**dict.fromkeys(_RESPONDS, RESPOND), **(self.synonyms or {})}
        match = find_name(said, known, synonyms)
        if match is None:
            return None
        action["name"] = log.value("/action/name", f"name_{match.how}", said, match.name)
        return match.name

    def _confidence(self, action: dict[str, Json], thought: str, log: Log) -> float:
        said = action.get("confidence", ABSENT)
        found = _probability(said)
        if found is not None and found[1] is None:
            return found[0]
        if found is None:
            kind = "missing_field" if said in (ABSENT, None) else "out_of_range"
            least = min(self.default_confidence, 0.5)
            value = least if hedged(thought, self.hedges) else self.default_confidence
        else:
            value, kind = found[0], found[1] or ""
        action["confidence"] = log.value("/action/confidence", kind, said, value)
        return value


def _is_risky(one: Repair) -> bool:
    """Tell whether a repair may be mistaken about what is to be done."""
    return one.is_guess and not one.at.startswith(("/thought", "/action/confidence"))


def hedged(text: str, hedges: Sequence[str]) -> str | None:
    """Return the first word of `hedges` that a text has as a word."""
    low = f" {' '.join(plain_name(w) for w in text.split())} "
    spoken = text.casefold()
    for hedge in hedges:
        word = hedge.casefold()
        if not word.isascii():
            if word in spoken:
                return hedge
        elif f" {' '.join(plain_name(w) for w in word.split())} " in low.replace(",", " "):
            return hedge
    return None


def _object(text: str, log: Log) -> dict[str, Json]:
    """Read the object of an answer, out of the marks of a tool call if it has those."""
    calls = [] if text.lstrip().startswith("{") else text_calls(text)
    if len(calls) > 1:
        raise Unreadable("several")
    for call in calls:
        said = call.arguments
        if call.name is not None and isinstance(said, str) and "{" in said:
            text = log.text("call_in_text", text, said)
            reading = read_object(text)
            log.repairs += reading.repairs
            text, said = (reading.repairs[-1].after if reading.repairs else text), reading.value
        if call.name is not None:
            said = call_text(call.name, said)
        text = log.text("call_in_text", text, said)
    reading = read_object(text)
    log.repairs += reading.repairs
    return dict(reading.value)


def _nested(value: dict[str, Json], log: Log) -> dict[str, Json]:
    """Bring an answer of another tool-calling form into ours: flat, or with other names."""
    calls = value.get("tool_calls", value.get("actions"))
    if isinstance(calls, list) and "action" not in value:
        if len(calls) != 1:
            raise Unreadable("several")
        key = "tool_calls" if "tool_calls" in value else "actions"
        _move(value, key, "action", calls[0], log)
    if not isinstance(value.get("action"), dict):
        _rename(value, "action", _ACTION, "", log, only=dict)
    action = value.get("action")
    if not isinstance(action, dict):
        action = _of_flat(value, log)
    action = dict(action)
    inner = action.get("function")
    if isinstance(inner, dict) and "name" not in action:
        for key, part in inner.items():
            log.value(f"/action/{_escaped(key)}", "field_form", action.get(key, ABSENT), part)
            action[key] = part
        log.value("/action/function", "field_form", action.pop("function"), ABSENT)
    _rename(action, "name", _NAME, "/action", log, only=str)
    _rename(action, "input", _INPUT, "/action", log)
    _rename(action, "confidence", _CONFIDENCE, "/action", log)
    value["action"] = action
    return action


def _of_flat(value: dict[str, Json], log: Log) -> dict[str, Json]:
    """Put the parts of an action that stand at the top where they belong."""
    before = dict(value)
    action: dict[str, Json] = {}
    name = value.pop("action", None)
    if isinstance(name, str):
        action["name"] = name
    for field in ("name", *_NAME, "input", *_INPUT, "confidence", *_CONFIDENCE):
        if field in value:
            action[field] = value.pop(field)
    value["action"] = action
    if value != before:
        log.value("", "field_form", before, value)
    return action


def _input(action: dict[str, Json], log: Log) -> dict[str, Json] | None:
    said = action.get("input", ABSENT)
    if isinstance(said, dict):
        return said
    if said is ABSENT or said is None or said in ("", "{}", []):
        action["input"] = log.value("/action/input", "missing_field", said, {})
        return {}
    if isinstance(said, str) and said.lstrip().startswith("{"):
        reading = read_object(said)
        kinds = "nested_json" if not reading.repairs else "syntax"
        action["input"] = log.value("/action/input", kinds, said, reading.value)
        return reading.value
    return None


def _probability(said: Json) -> tuple[float, str | None] | None:
    """Return a confidence, and the kind of repair that it took; None when there is none."""
    if isinstance(said, str):
        text = said.strip().rstrip("%").strip()
        if text.casefold() in _LEVELS:
            return _LEVELS[text.casefold()], "number_in_words"
        read = read_number(text)
        if read is None:
            return None
        percent = said.strip().endswith("%") or read.value > 1
        value = read.value / 100 if percent else float(read.value)
        return (value, "coerced") if 0 <= value <= 1 else None
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    if 0 <= said <= 1:
        return float(said), None
    return (said / 100, "coerced") if 1 < said <= 100 else None


def _rename(
    value: dict[str, Json],
    name: str,
    others: Sequence[str],
    at: str,
    log: Log,
    only: type = object,
) -> None:
    """Give a field that is missing what stands under another name of it."""
    if name in value:
        return
    for other, part in list(value.items()):
        known = plain_name(other)
        if (known == name or known in others) and isinstance(part, only):
            del value[other]
            log.value(f"{at}/{_escaped(other)}", "field_form", part, ABSENT)
            value[name] = log.value(f"{at}/{name}", "field_form", ABSENT, part)
            return


def _move(value: dict[str, Json], old: str, new: str, part: Json, log: Log) -> None:
    log.value(f"/{_escaped(old)}", "field_form", value.pop(old), ABSENT)
    value[new] = log.value(f"/{new}", "field_form", ABSENT, part)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
