"""Read one JSON object out of what a model said.

What is strict JSON already is taken as it is. Else the text goes through the stages of `_STAGES` in
their order, each of which takes away one common fault, until it is strict JSON. What is cut off,
what holds two different objects, and what would lose or gain words by being read is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from json_repair import repair_json

from harness_common.contracts.repair.literals import python_value
from harness_common.contracts.repair.log import Log, Repair
from harness_common.contracts.repair.scan import Found, objects, spans, too_deep
from harness_common.core.message import Json

MAX_CHARS: Final = 64 * 1024
"""Longer texts are read only when they are strict JSON: repairing takes time, and every run of the
process waits meanwhile.
"""

Cause = Literal[
    "no_object", "truncated", "several", "duplicate_key", "ambiguous", "too_long", "too_deep",
    "unreadable",
]  # fmt: skip
_CAUSES: Final[dict[Cause, str]] = {
    "no_object": "it has no JSON object",
    "truncated": "its JSON ends before it is complete",
    "several": "it has more than one JSON object, and they differ",
    "duplicate_key": "an object in it has a key twice, with different values",
    "ambiguous": "a backslash in it can be read in two ways",
    "too_long": f"it is not valid JSON, and longer than {MAX_CHARS} characters",
    "too_deep": "it nests too deeply",
    "unreadable": "it is not valid JSON, and cannot be read without guessing",
}


class Unreadable(ValueError):
    """What was said cannot be read; `cause` is one of a few words."""

    def __init__(self, cause: Cause, detail: str = "") -> None:
        super().__init__(_CAUSES[cause] + (f": {detail}" if detail else ""))
        self.cause: Cause = cause


@dataclass(frozen=True, slots=True)
class Reading:
    """The object that was meant, and what was done to read it."""

    value: dict[str, Json]
    repairs: tuple[Repair, ...] = ()


def read_object(text: str, *, may_close: bool = False) -> Reading:
    """Read the one JSON object of a text. With `may_close` an object that only lacks closing
    brackets at its end is closed; never use it for what is to be done.

    Raises `Unreadable`.
    """
    log = Log()
    if "\\u0000" in text:  # Postgres keeps no NUL, neither in text nor in jsonb
        text = log.text("nul", text, _NUL.sub(r"\1", text))
    value = _strict(text)
    if value is not None:
        return Reading(value, tuple(log.repairs))
    if len(text) > MAX_CHARS:
        raise Unreadable("too_long")
    for kind, stage in _STAGES:
        text = log.text(kind, text, stage(text))
        if kind == "surroundings":
            text = _whole(log, text, may_close)
        if (value := _strict(text)) is not None:
            return Reading(value, tuple(log.repairs))
    raise Unreadable("unreadable")


def strict(text: str) -> Json:
    """Read strict JSON: no NaN, no key twice. Raises `ValueError`."""
    return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def _strict(text: str) -> dict[str, Json] | None:
    """Return the object that a text is, strictly; None when it is none."""
    if "{" not in text:
        return None
    try:
        value = strict(text)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("too_deep") from None
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if too_deep(text):
        raise Unreadable("too_deep")
    if _SURROGATE.search(text) and not _is_unicode(value):
        raise Unreadable("unreadable", "it has half a character")
    return value


def _is_unicode(value: Json) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SURROGATE: Final = re.compile(r"\\u[dD]|[\ud800-\udfff]")


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise Unreadable("duplicate_key", key[:60])
        found[key] = value
    return found


def _constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


# --- stages on the whole text -------------------------------------------------------------------

_INVISIBLE: Final = re.compile('[\u200b\u200c\u2060\ufeff\x00]|\u200d(?=[\\s"{}\\[\\],:])')
_THINKING: Final = re.compile(r"<(think|thinking|reasoning)>.*?</\1>|^.*?</think>", re.DOTALL)
_FENCE: Final = re.compile(r"(?:```|~~~)[ \t]*([\w+-]*)[ \t]*\r?\n?(.*?)(?:```|~~~|\Z)", re.DOTALL)
_LANGUAGES: Final = frozenset(
    {"", "json", "json5", "jsonc", "javascript", "js", "python", "tool_call"}
)


def _no_invisible(text: str) -> str:
    return _INVISIBLE.sub("", text).strip()


def _no_thinking(text: str) -> str:
    return text if text.startswith("{") else _THINKING.sub("", text).strip()


def _unwrapped(text: str) -> str:
    """Take an object out of a JSON string that holds its text."""
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) and "{" in value else text


def _unfenced(text: str) -> str:
    """Take the contents of a fence; of two that differ, neither."""
    if text.startswith("{"):
        return text  # a fence, if there is any, stands in a string
    inside = [
        body.strip()
        for language, body in _FENCE.findall(text)
        if "{" in body and language.lower() in _LANGUAGES
    ]
    if len(set(inside)) > 1:
        raise Unreadable("several")
    return inside[0] if inside else text


def _object_of(text: str) -> str:
    """Take the object out of what stands around it."""
    found = objects(text)
    if not found:
        raise Unreadable("no_object")
    whole = list(dict.fromkeys(text[f.start : f.end] for f in found if f.end is not None))
    if len(whole) > 1:
        whole = _same(whole)
    if not whole:
        return text[found[0].start :]
    if found[-1].end is None:
        raise Unreadable("truncated")
    return whole[0]


def _same(texts: list[str]) -> list[str]:
    """Return one of several objects that mean the same."""
    try:
        first, *others = (strict(t) for t in texts)
    except ValueError:
        raise Unreadable("several") from None
    if any(other != first for other in others):
        raise Unreadable("several")
    return texts[:1]


def _whole(log: Log, text: str, may_close: bool) -> str:
    """Refuse an object that is cut off, or close it."""
    found: Found = objects(text)[0]
    if found.end is not None:
        return text
    if not may_close or found.in_string or text.rstrip()[-1] not in '"”}]':
        raise Unreadable("truncated")
    return log.text("closed", text, text.rstrip() + found.missing)


# --- stages on an object ------------------------------------------------------------------------

_STRAIGHT: Final = {"“", "”", "„", "«", "»", "＂"}
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/|#[^\n]*", re.DOTALL)
_TRAILING: Final = re.compile(r",(\s*)(?=[}\]])")
_KEY: Final = re.compile(r"([{,]\s*)([A-Za-z_$][\w$-]*)(\s*:)")
_WORD: Final = re.compile(r"(?<![\w.])(True|False|None|TRUE|FALSE|NULL|undefined)(?![\w.])")
_WORDS: Final = {
    "True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false",
    "NULL": "null", "undefined": "null",
}  # fmt: skip
_NOT_FINITE: Final = re.compile(r"(?<![\w.])[+-]?(?:NaN|nan|Infinity|inf)(?![\w.])")
_FULLWIDTH: Final = {"，": ",", "：": ":", "｛": "{", "｝": "}", "［": "[", "］": "]"}
_BARE: Final = re.compile(r"(?<=[:\[,\s])([+-]?)(\d*)\.(\d*)(?=[\s,}\]]|$)|(?<=[:\[,\s])\+(?=\d)")


def _outside(change: Callable[[str], str]) -> Callable[[str], str]:
    """Make a stage that leaves strings as they are."""
    return lambda text: "".join(s.text if s.is_string else change(s.text) for s in spans(text))


def _straight_quotes(text: str) -> str:
    return "".join(
        json.dumps(s.text[1:-1], ensure_ascii=False).replace("\\\\", "\\")
        if s.is_string and s.text[0] in _STRAIGHT
        else s.text
        for s in spans(text)
    )


def _ascii_signs(text: str) -> str:
    return "".join(_FULLWIDTH.get(c, c) for c in text)


def _plain_number(found: re.Match[str]) -> str:
    """Write `.5`, `1.` and `+3` as JSON does."""
    sign, whole, rest = found[1] or "", found[2] or "", found[3] or ""
    if not whole and not rest:
        return "" if found[2] is None else found[0]
    return f"{sign.strip('+')}{whole or 0}.{rest or 0}"


def _requoted(text: str) -> str:
    """Write strings in single quotes with double ones."""
    return "".join(
        _double(s.text) if s.is_string and s.text[0] == "'" and not _INNER["'"].search(s.text[1:-1])
        else s.text
        for s in spans(text)
    )  # fmt: skip


def _double(text: str) -> str:
    inside = text[1:-1].replace("\\'", "'")
    return '"' + re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inside) + '"'


def _inner_quotes(text: str) -> str:
    """Escape quotes that stand within a string."""
    return "".join(_quotes_escaped(s.text) if s.is_string else s.text for s in spans(text))


def _quotes_escaped(text: str) -> str:
    quote = text[0]
    if quote == "'":
        return _double(text)
    if quote != '"':
        return text
    return f'"{_INNER[quote].sub(lambda m: m[1] + chr(92) + m[2], text[1:-1])}"'


_INNER: Final = {q: re.compile(rf"(?<!\\)((?:\\\\)*)({q})") for q in "\"'"}
_VALID_ESCAPE: Final = re.compile(r'\\(?:(["\\/])|([bfnrt])|(u[0-9a-fA-F]{4})|(.))', re.DOTALL)


def _escapes(text: str) -> str:
    """Double backslashes that begin no escape; refuse a string that has both sorts."""
    return "".join(_string_escapes(s.text) if s.text[0] == '"' else s.text for s in spans(text))


def _string_escapes(text: str) -> str:
    found = list(_VALID_ESCAPE.finditer(text))
    bad = [m for m in found if m[4]]
    if not bad or all(m[4] == "'" for m in bad):
        return text.replace("\\'", "'")
    if any(m[2] for m in found):
        raise Unreadable("ambiguous")
    return _VALID_ESCAPE.sub(lambda m: "\\" + m[0] if m[4] else m[0], text)


def _control(text: str) -> str:
    """Escape line breaks and tabs that stand in strings as they are."""
    return "".join(_escaped(s.text) if s.is_string else s.text for s in spans(text))


def _escaped(text: str) -> str:
    return "".join(c if c >= " " else json.dumps(c)[1:-1] for c in text)


def _python(text: str) -> str:
    value = python_value(text)
    return text if value is None else _dump(value)


def _last_resort(text: str) -> str:
    """Let the library read what is left, and take it only if no word was lost or gained."""
    value: Any = repair_json(text, return_objects=True, skip_json_loads=True)
    if not isinstance(value, dict):
        raise Unreadable("unreadable")
    try:
        after = _dump(value)
    except ValueError:
        raise Unreadable("unreadable") from None
    if _words(text) != _words(after):
        raise Unreadable("unreadable")
    return after


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SIGNS: Final = re.compile(r"[\s\"'“”„«»＂`,:;{}\[\]]+")


def _words(text: str) -> str:
    """Return what a text says, without the signs by which JSON is written."""
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _PLAIN.get(m[2], m[2]), text)
    return _SIGNS.sub("", plain)


_PLAIN: Final = {"n": "", "t": "", "r": "", "b": "", "f": ""}

_STAGES: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    ("invisible", _no_invisible),
    ("thinking", _no_thinking),
    ("double_encoded", _unwrapped),
    ("fence", _unfenced),
    ("surroundings", _object_of),
    ("typographic_quotes", _straight_quotes),
    ("fullwidth_signs", _outside(_ascii_signs)),
    ("comment", _outside(lambda t: _COMMENT.sub("", t))),
    ("control_character", _control),
    ("python_literal", _python),
    ("trailing_comma", _outside(lambda t: _TRAILING.sub(r"\1", t))),
    ("unquoted_key", _outside(lambda t: _KEY.sub(r'\1"\2"\3', t))),
    ("literal_word", _outside(lambda t: _WORD.sub(lambda m: _WORDS[m[1]], t))),
    ("not_finite", _outside(lambda t: _NOT_FINITE.sub("null", t))),
    ("number_form", _outside(lambda t: _BARE.sub(_plain_number, t))),
    ("single_quotes", _requoted),
    ("bad_escape", _escapes),
    ("inner_quotes", _inner_quotes),
    ("syntax", _last_resort),
)
