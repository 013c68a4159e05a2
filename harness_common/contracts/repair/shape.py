"""Bring a value into the form of a JSON Schema, where it is plain what was meant.

It only repairs: what is still wrong afterwards is for the validator to say. A schema may help with
`default` (for what is missing or not known) and `x-synonyms` (words for the values of an enum).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from harness_common.contracts.repair.log import ABSENT, Log
from harness_common.contracts.repair.names import find_name
from harness_common.contracts.repair.numbers import read_number
from harness_common.contracts.repair.text import strict
from harness_common.core import pointer
from harness_common.core.message import Json

_DEPTH: Final = 40
_YES: Final = frozenset({"true", "yes", "y", "on", "1", "是", "对", "真"})
_NO: Final = frozenset({"false", "no", "n", "off", "0", "否", "不", "假"})
_NULLS: Final = frozenset({"null", "none", "n/a", "nil", ""})
_SCALARS: Final = ("integer", "number", "boolean", "string")


@dataclass(frozen=True, slots=True)
class Rules:
    """How far repairs may go."""

    guess: bool = True
    """Whether what may be mistaken is done too (`log.GUESSES`)."""
    drop_extra: bool = False
    """Whether fields that the schema forbids are left out; else they stay, and are refused."""


def shape(value: Json, schema: Json, log: Log, rules: Rules = Rules()) -> Json:
    """Return the value in the form of the schema, as near as it comes; the argument stays."""
    return _Shaper(schema, log, rules).any(value, schema, "", 0)


class _Shaper:
    def __init__(self, root: Json, log: Log, rules: Rules) -> None:
        self._root, self._log, self._rules = root, log, rules

    def any(self, value: Json, schema: Json, at: str, depth: int) -> Json:
        """Repair one value and what is in it."""
        schema = self._resolved(schema)
        if depth > _DEPTH or not isinstance(schema, dict):
            return value
        branch = self._branch(value, schema)
        if branch is not None:
            return self.any(value, branch, at, depth + 1)
        if "enum" in schema or "const" in schema:
            return self._enum(value, schema, at)
        types = types_of(schema)
        if types and not is_of(value, types):
            value = self._coerced(value, types, schema, at)
        if isinstance(value, dict):
            return self._object(value, schema, at, depth)
        items = schema.get("items")
        if isinstance(value, list) and isinstance(items, dict):
            return [self.any(v, items, f"{at}/{i}", depth + 1) for i, v in enumerate(value)]
        return value

    def _resolved(self, schema: Json) -> Json:
        for _ in range(8):
            target = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(target, str) or not target.startswith("#"):
                return schema
            found = pointer.follow(self._root, target[1:])
            if found is pointer.NOTHING:
                return None
            schema = found
        return None

    def _branch(self, value: Json, schema: dict[str, Json]) -> Json:
        """Choose the branch of a union: one of the value's type, else the only one with a type
        besides null.
        """
        branches = next((schema[k] for k in ("anyOf", "oneOf") if k in schema), None)
        if not isinstance(branches, list):
            return None
        known = [b for b in map(self._resolved, branches) if isinstance(b, dict)]
        fits = [b for b in known if is_of(value, types_of(b) or [""]) or value in b.get("enum", ())]
        if fits:
            return fits[0]
        others = [b for b in known if types_of(b) != ["null"]]
        return others[0] if len(others) == 1 else None

    # --- objects ---

    def _object(self, value: dict[str, Json], schema: dict[str, Json], at: str, depth: int) -> Json:
        fields = schema.get("properties")
        if not isinstance(fields, dict):
            return value
        required = [n for n in schema.get("required", ()) if isinstance(n, str)]
        value = self._renamed(dict(value), fields, at)
        value = self._without_nulls(value, fields, required, at)
        for name, part in fields.items():
            part_at = at + pointer.write((name,))
            if name in value:
                value[name] = self.any(value[name], part, part_at, depth + 1)
            elif name in required and (default := self._default(part)) is not ABSENT:
                value[name] = self._log.value(part_at, "missing_field", ABSENT, default)
        if self._rules.drop_extra and not _may_have_more(schema):
            for name in [n for n in value if n not in fields]:
                self._log.value(at + pointer.write((name,)), "extra_field", value.pop(name), ABSENT)
        return value

    def _renamed(
        self, value: dict[str, Json], fields: Mapping[str, Json], at: str
    ) -> dict[str, Json]:
        """Give fields that nobody knows the name of a missing one that is nearly theirs."""
        free = [name for name in fields if name not in value]
        for name in [n for n in value if n not in fields]:
            match = find_name(name, free)
            if match is None or (match.how == "similar" and not self._rules.guess):
                continue
            kind = "field_similar" if match.how == "similar" else "field_form"
            part = value.pop(name)
            self._log.value(at + pointer.write((name,)), kind, part, ABSENT)
            self._log.value(at + pointer.write((match.name,)), kind, ABSENT, part)
            value[match.name] = part
            free.remove(match.name)
        return value

    def _without_nulls(
        self, value: dict[str, Json], fields: Mapping[str, Json], required: list[str], at: str
    ) -> dict[str, Json]:
        """Leave out an optional field whose value is null where null is not allowed."""
        for name in [n for n, v in value.items() if v is None and n in fields]:
            if name not in required and not self._may_be_null(fields[name]):
                value.pop(name)
                self._log.value(at + pointer.write((name,)), "null_field", None, ABSENT)
        return value

    def _may_be_null(self, schema: Json) -> bool:
        schema = self._resolved(schema)
        if not isinstance(schema, dict):
            return True
        if "enum" in schema or "const" in schema:
            return None in schema.get("enum", (schema.get("const"),))
        branches = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(branches, list):
            return any(map(self._may_be_null, branches))
        types = types_of(schema)
        return not types or "null" in types

    def _default(self, schema: Json) -> Json:
        schema = self._resolved(schema)
        return schema.get("default", ABSENT) if isinstance(schema, dict) else ABSENT

    # --- values ---

    def _enum(self, value: Json, schema: dict[str, Json], at: str) -> Json:
        known = schema["enum"] if "enum" in schema else [schema["const"]]
        if value in known and not isinstance(value, bool):
            return value
        if isinstance(value, bool) and any(v is value for v in known):
            return value
        names = {str(v): v for v in known if not isinstance(v, dict | list)}
        if not isinstance(value, dict | list) and value is not None:
            match = find_name(str(value), names, schema.get("x-synonyms"))
            if match is not None and (match.how != "similar" or self._rules.guess):
                return self._log.value(at, f"enum_{match.how}", value, names[match.name])
        return self._or_default(value, schema, at, "enum_unknown")

    def _or_default(self, value: Json, schema: dict[str, Json], at: str, kind: str) -> Json:
        if not self._rules.guess or "default" not in schema:
            return value
        return self._log.value(at, kind, value, schema["default"])

    def _coerced(self, value: Json, types: list[str], schema: dict[str, Json], at: str) -> Json:
        """Turn a value of another type into one of these, if it plainly says one."""
        for kind, after in self._ways(value, types):
            if is_of(after, types):
                return self._log.value(at, kind, value, after)
        return self._or_default(value, schema, at, "default")

    def _ways(self, value: Json, types: list[str]) -> list[tuple[str, Json]]:
        ways: list[tuple[str, Json]] = []
        if isinstance(value, str):
            ways += self._from_text(value, types)
        elif isinstance(value, bool):
            ways.append(("coerced", "true" if value else "false"))
        elif isinstance(value, int | float):
            if isinstance(value, float) and value.is_integer() and "integer" in types:
                ways.append(("coerced", int(value)))
            ways.append(("coerced", json.dumps(value)))
            if value in (0, 1) and types == ["boolean"]:
                ways.append(("coerced", bool(value)))
        if "array" in types and not isinstance(value, list) and self._rules.guess:
            ways.append(("wrapped_in_list", [value]))
        return ways

    def _from_text(self, value: str, types: list[str]) -> list[tuple[str, Json]]:
        ways: list[tuple[str, Json]] = []
        word = value.strip().casefold()
        if "boolean" in types and word in _YES | _NO:
            ways.append(("coerced", word in _YES))
        read = read_number(value) if {"integer", "number"} & set(types) else None
        if read is not None and (read.exact or self._rules.guess):
            kind = "coerced" if read.exact else "number_in_words"
            number = read.value
            if isinstance(number, float) and number.is_integer() and "integer" in types:
                number = int(number)
            ways.append((kind, number))
        if "null" in types and word in _NULLS:
            ways.append(("coerced", None))
        if word[:1] in {"{", "["}:
            with contextlib.suppress(ValueError, RecursionError):
                ways.append(("nested_json", strict(value)))
        return ways


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema names; none means any."""
    found = schema.get("type")
    if isinstance(found, str):
        return [found]
    return [t for t in found if isinstance(t, str)] if isinstance(found, list) else []


def is_of(value: Json, types: list[str]) -> bool:
    """Tell whether a value is of one of these types, as JSON Schema has them."""
    return any(_IS[t](value) for t in types if t in _IS)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS: Final[Mapping[str, Callable[[Json], bool]]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "number": _is_number,
    # A float cannot hold every integer that may come.
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
}


def _may_have_more(schema: Mapping[str, Json]) -> bool:
    """Tell whether an object may have fields that its schema does not name."""
    if any(k in schema for k in ("allOf", "if", "patternProperties", "propertyNames")):
        return True
    return schema.get("additionalProperties", True) is not False
