"""The values of a graph: templates that point into them, conditions about them, and reducers.

Everything is data: a template has holes `${/json/pointer}`, a condition is a pointer and what its
value is compared with. Nothing is ever evaluated as code, and nothing grows without a bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from harness_common.core.message import Json
from harness_common.core.pointer import NOTHING, follow

MAX_CHARS: Final = 2_000_000
"""How large one value may become, in characters of JSON or so."""
_HOLE: Final = re.compile(r"\$\$\{|\$\{(?P<at>[^{}]*)\}")


class BadValue(Exception):
    """A template points at nothing, or a value is not what it has to be: the message says which."""


def holes(
    template: Json, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """List the holes of a template: where each is in it, and the text between its braces."""
    match template:
        case str():
            yield from ((path, m["at"]) for m in _HOLE.finditer(template) if m["at"] is not None)
        case dict():
            for key, value in template.items():
                yield from holes(value, (*path, key))
        case list() | tuple():
            for i, value in enumerate(template):
                yield from holes(value, (*path, i))
        case _:
            return


def fill(template: Json, root: Mapping[str, Json]) -> Json:
    """Return a template with its holes filled from `root`; a text that is one hole keeps the type
    of what it points at. A pointer that ends with `?` may point at nothing, which is null.

    Raises `BadValue` for a pointer that leads nowhere and for a value that has become too large.
    """
    value = _fill(template, root)
    if size(value, MAX_CHARS) > MAX_CHARS:
        raise BadValue(f"the value has more than {MAX_CHARS} characters")
    return value


def literal(value: Json) -> Json:
    """Return the template that is filled as this value, whatever its texts are."""
    match value:
        case str():
            return value.replace("${", "$${")
        case dict():
            return {name: literal(one) for name, one in value.items()}
        case list() | tuple():
            return [literal(one) for one in value]
        case _:
            return value


def _fill(template: Json, root: Mapping[str, Json]) -> Json:
    match template:
        case str():
            return _fill_text(template, root)
        case dict():
            return {key: _fill(value, root) for key, value in template.items()}
        case list() | tuple():
            return [_fill(value, root) for value in template]
        case _:
            return template


def _fill_text(text: str, root: Mapping[str, Json]) -> Json:
    whole = _HOLE.fullmatch(text)
    if whole is not None and whole["at"] is not None:
        return look(root, whole["at"])
    parts: list[str] = []
    end = chars = 0
    for match in _HOLE.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        parts.append("${" if match["at"] is None else _plain(look(root, match["at"])))
        chars += len(parts[-1])
        if chars > MAX_CHARS:
            raise BadValue(f"the text has more than {MAX_CHARS} characters")
    parts.append(text[end:])
    return "".join(parts)


def _plain(value: Json) -> str:
    """Write a value into a text: text as it is, nothing for null, all else as JSON."""
    if isinstance(value, str):
        return value
    if size(value, MAX_CHARS) > MAX_CHARS:
        raise BadValue(f"the value has more than {MAX_CHARS} characters")
    return "" if value is None else as_text(value)


def as_text(value: Json) -> str:
    """Write a value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def look(root: Mapping[str, Json], at: str) -> Json:
    """Return what a pointer leads to; raises `BadValue`."""
    found = follow(root, at.removesuffix("?"))
    if found is not NOTHING:
        return found
    if at.endswith("?"):
        return None
    raise BadValue(f"{at} points at nothing")


def size(value: Json, most: int) -> int:
    """Return about how many characters a value has as JSON; stops counting above `most`."""
    total, todo = 0, [value]
    while todo and total <= most:
        one = todo.pop()
        total += 2
        match one:
            case str():
                total += len(one)
            case dict():
                total += sum(len(key) + 4 for key in one)
                todo.extend(one.values())
            case list() | tuple():
                todo.extend(one)
            case _:
                total += 8
    return total


def parsed(text: str, how: str) -> Json:
    """Read what a call gave: `json` must be JSON, `auto` is JSON where it is JSON; raises
    `BadValue`.
    """
    if how == "text":
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        if how == "auto":
            return text
        raise BadValue(f"the result is not JSON: {str(error)[:200]}") from None


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON value")


def _both(a: Json, b: Json) -> bool:
    """Tell whether two values can be ordered: two numbers or two texts."""
    number = (int, float)
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    return (isinstance(a, number) and isinstance(b, number)) or (
        isinstance(a, str) and isinstance(b, str)
    )


def _has(found: Json, wanted: Json) -> bool:
    if isinstance(found, str):
        return isinstance(wanted, str) and wanted in found
    if isinstance(found, list):
        return any(same(one, wanted) for one in found)
    return isinstance(found, dict) and wanted in found


def same(a: Json, b: Json) -> bool:
    """Tell whether two JSON values are equal; true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "is": same,
    "is_not": lambda found, wanted: not same(found, wanted),
    "lt": lambda found, wanted: _both(found, wanted) and found < wanted,
    "le": lambda found, wanted: _both(found, wanted) and found <= wanted,
    "gt": lambda found, wanted: _both(found, wanted) and found > wanted,
    "ge": lambda found, wanted: _both(found, wanted) and found >= wanted,
    "in": lambda found, wanted: isinstance(wanted, list) and _has(wanted, found),
    "contains": lambda found, wanted: isinstance(wanted, str | int | float) and _has(found, wanted),
    "empty": lambda found, wanted: (found in (None, "") or found in ([], {})) is wanted,
}
"""What a condition may ask about a value; `exists` is asked about the pointer itself."""


def holds(condition: Json, root: Mapping[str, Json]) -> bool:
    """Tell whether a condition holds. A pointer that leads nowhere makes every comparison false but
    `exists: false` and `is_not`; raises `BadValue` for a comparand that points at nothing.
    """
    if "all" in condition:
        return all(holds(one, root) for one in condition["all"])
    if "any" in condition:
        return any(holds(one, root) for one in condition["any"])
    if "not" in condition:
        return not holds(condition["not"], root)
    found = follow(root, condition["at"])
    for name, wanted in condition.items():
        if name == "at":
            continue
        if name == "exists":
            true = (found is not NOTHING) is wanted
        elif found is NOTHING:
            true = name == "is_not"
        else:
            true = COMPARISONS[name](found, _fill(wanted, root))
        if not true:
            return False
    return True


def pointers(condition: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, str]]:
    """List what a condition points at, and where in it."""
    for name, value in condition.items():
        if name in {"all", "any"}:
            for i, one in enumerate(value):
                yield from pointers(one, (*path, name, i))
        elif name == "not":
            yield from pointers(value, (*path, name))
        elif name == "at":
            yield (*path, name), value
        else:
            yield from holes(value, (*path, name))


def reduced(reducer: str, old: Json, new: Json) -> Json:
    """Return a channel's value with what a node gives; raises `BadValue` when it does not fit."""
    match reducer:
        case "replace":
            value = new
        case "append":
            value = [*(old or ()), new]
        case "add" if _both(old if old is not None else 0, new) and not isinstance(new, str):
            value = (old or 0) + new
        case "merge" if isinstance(new, dict):
            value = {**(old or {}), **new}
        case "union":
            value = _union(old or (), new if isinstance(new, list) else [new])
        case _:
            raise BadValue(f"{reducer} cannot take a {_kind(new)}")
    if size(value, MAX_CHARS) > MAX_CHARS:
        raise BadValue(f"the state would have more than {MAX_CHARS} characters")
    return value


def _union(old: Iterable[Json], new: Iterable[Json]) -> list[Json]:
    """Join two sets, in an order that does not depend on who came first."""
    by_text = {json.dumps(one, sort_keys=True, ensure_ascii=False): one for one in (*old, *new)}
    return [by_text[text] for text in sorted(by_text)]


def _kind(value: Json) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


FITS: Final[Mapping[str, tuple[type, ...]]] = {
    "append": (list,),
    "add": (int, float),
    "merge": (dict,),
    "union": (list,),
}
"""What a channel may start with, by its reducer; None always, and anything for `replace`."""
