"""Find tool calls that a model wrote as text: in tags, after `Action:`, in a server's own marks.

Each is given as `(name, arguments text or value)`; arguments are read by `text`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from harness_common.contracts.repair.scan import objects
from harness_common.contracts.repair.text import Unreadable, read_object
from harness_common.core.message import Json

_TAG: Final = re.compile(
    r"<(tool_call|function_call|tool_use|tool_code)>(.*?)(</\1>|(?=<\1>)|\Z)", re.DOTALL
)
_FUNCTION: Final = re.compile(r"<function=([\w.-]+)>(.*?)(</function>|\Z)", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_INVOKE: Final = re.compile(
    r"<(?:\w+:)?invoke\s+name=[\"']([\w.-]+)[\"']\s*>(.*?)(</(?:\w+:)?invoke>|\Z)", re.DOTALL
)
_NAMED: Final = re.compile(
    r"<(?:\w+:)?parameter\s+name=[\"']([\w.-]+)[\"'][^>]*>(.*?)</(?:\w+:)?parameter>", re.DOTALL
)
_LIST: Final = re.compile(r"(?:\[TOOL_CALLS\]|functools|<\|tool_calls?\|>)\s*(?=\[)")
_PYTHON_TAG: Final = re.compile(r"<\|python_tag\|>\s*(?=\{)")
_REACT: Final = re.compile(
    r"^[*_ ]*Action[*_ ]*:[*_ ]*`?([\w .:/-]+?)`?[*_ ]*\n+[*_ ]*Action[ _]Input[*_ ]*:[*_ ]*",
    re.MULTILINE | re.IGNORECASE,
)
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_OPEN: Final = re.compile(
    r"<(?:tool_call|function_call|tool_use|tool_code|function=|(?:\w+:)?invoke\s)|\[TOOL_CALLS\]"
    r"|<\|tool_calls?\|>|<\|python_tag\|>"
)


@dataclass(frozen=True, slots=True)
class TextCall:
    """One call as it was written. `arguments` is a JSON object's text, or already a value."""

    name: str | None
    """None: the name is in the text too, which is a whole call."""
    arguments: Json


def has_marks(text: str) -> bool:
    """Tell whether a text has the marks of a tool call. Plain JSON has none, and what is quoted as
    code is no call.
    """
    found = _OPEN.search(text) is not None
    return found and _OPEN.search(_CODE.sub("", text)) is not None


def text_calls(text: str) -> list[TextCall]:
    """Find the calls of a text, in order; none when it has no marks of any.

    Raises `Unreadable` for one that is cut off.
    """
    for find in (_tagged, _functions, _invoked, _listed, _python_tag, _react):
        if found := list(find(text)):
            return found
    return []


def call_text(name: str, arguments: Json) -> str:
    """Write a call in the one form that is read on."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _tagged(text: str) -> Iterator[TextCall]:
    for _, body, end in _TAG.findall(text):
        inner = list(_functions(body)) or list(_invoked(body))
        if not inner and "{" not in body:
            continue
        if not end and not inner and not _is_whole(body):
            raise Unreadable("truncated")
        yield from inner or [TextCall(None, body.strip())]


def _functions(text: str) -> Iterator[TextCall]:
    for name, body, end in _FUNCTION.findall(text):
        fields = _PARAMETER.findall(body)
        if not end and (fields or not _is_whole(body)):
            raise Unreadable("truncated")
        bare = bool(body.strip()) and not fields and "{" not in body
        if bare or body.count("<parameter=") != len(fields):
            raise Unreadable("unreadable")
        yield TextCall(name, body.strip() or {}) if not fields else _of_fields(name, fields, str)


def _invoked(text: str) -> Iterator[TextCall]:
    for name, body, end in _INVOKE.findall(text):
        if not end:
            raise Unreadable("truncated")
        yield _of_fields(name, _NAMED.findall(body), html.unescape)


def _of_fields(name: str, fields: list[tuple[str, str]], read: Callable[[str], str]) -> TextCall:
    """Make arguments of texts; what type they have is for the tool's schema to say."""
    arguments: dict[str, Json] = {}
    for field, value in fields:
        if field in arguments:
            raise Unreadable("duplicate_key", field[:60])
        arguments[field] = read(value)
    return TextCall(name, arguments)


def _listed(text: str) -> Iterator[TextCall]:
    mark = _LIST.search(text)
    if mark is None:
        return
    rest = text[mark.end() :]
    found = objects(rest)
    if not found or found[-1].end is None:
        raise Unreadable("truncated")
    yield from (TextCall(None, rest[f.start : f.end]) for f in found)


def _python_tag(text: str) -> Iterator[TextCall]:
    mark = _PYTHON_TAG.search(text)
    if mark is not None:
        yield TextCall(None, text[mark.end() :])


def _react(text: str) -> Iterator[TextCall]:
    found = list(_REACT.finditer(text))
    ends = [*(m.start() for m in found), len(text)][1:]
    for one, after in zip(found, ends, strict=True):
        rest = re.split(r"\n[*_ ]*Observation[*_ ]*:", text[one.end() : after])[0]
        if objects(rest):
            yield TextCall(one[1].strip(), rest.strip())
        else:
            yield TextCall(one[1].strip(), rest.strip().strip("`") or {})


def _is_whole(text: str) -> bool:
    try:
        read_object(text)
    except Unreadable:
        return False
    return True
