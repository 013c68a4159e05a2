"""Checks a model's arguments against a tool's schema before the tool runs.

Called by the runner for every call and, for schemas, by the registry. What fails here is told to
the model in words it can act on; the tool's function is never reached.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import cast
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry

from harness_common.contracts.tool import ToolSpec
from harness_common.contracts.tool_schema import Re2Validator
from harness_common.core.errors import Invalid
from harness_common.core.message import Json

_MAX_PROBLEMS = 8
_MAX_VALUE_CHARS = 120
_MAX_COMPILED = 2_048

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DATE_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_EMAIL = re.compile(r"[^@\s<>\"]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_URI_FORBIDDEN = re.compile(r"[\x00-\x20\x7f<>\"{}|\\^`]")

_FORMATS = FormatChecker(formats=("ipv4", "ipv6", "uuid"))

_compiled: dict[tuple[str, ...], tuple[Json, Draft202012Validator]] = {}


def validate_arguments(spec: ToolSpec, arguments: Json) -> None:
    """Refuse arguments that the schema does not allow.

    A field that the schema does not name is refused even if the schema forgot to say
    `additionalProperties: false`.
    Raises `Invalid` with code `ARGUMENTS_INVALID`; its message is for the model, its detail has
    `problems`, a list of `{path, cause}`.
    """
    if not isinstance(arguments, dict):
        raise _refusal(spec, [("arguments", f"must be an object, not {_kind(arguments)}")])
    problems = [(path, "must be a finite number") for path in _not_finite(arguments, "")]
    if not problems:
        problems = [problem for error in _errors(spec, arguments) for problem in _explain(error)]
    if problems:
        raise _refusal(spec, problems)


def result_problems(spec: ToolSpec, value: Json) -> list[tuple[str, str]]:
    """List where a result is not what the tool's `output_schema` promises, as (path, cause)."""
    problems = [(path, "must be a finite number") for path in _not_finite(value, "")]
    if problems:
        return problems[:_MAX_PROBLEMS]
    errors = _result_validator(spec).iter_errors(value)
    ordered = sorted(errors, key=lambda e: list(map(str, e.path)))
    found = [problem for error in ordered[:_MAX_PROBLEMS] for problem in _explain(error)]
    return [("result" if path == "arguments" else path, cause) for path, cause in found]


def schema_problems(schema: Json, value: Json, what: str = "output") -> list[tuple[str, str]]:
    """List where a value does not fit a schema of a tenant, as (path, cause); `what` names it."""
    key = (what, json.dumps(schema))
    if key not in _compiled:
        if len(_compiled) >= _MAX_COMPILED:
            _compiled.clear()
        _compiled[key] = (
            schema,
            Re2Validator(schema, format_checker=_FORMATS, registry=Registry()),
        )
    try:
        errors = list(_compiled[key][1].iter_errors(value))
    except RecursionError:
        return [(what, "is nested too deeply for the schema")]
    ordered = sorted(errors, key=lambda e: list(map(str, e.path)))
    found = [problem for error in ordered[:_MAX_PROBLEMS] for problem in _explain(error)]
    return [
        (what if path == "arguments" else path, cause.replace("of this tool", f"of the {what}"))
        for path, cause in found
    ]


def in_words(problems: Iterable[tuple[str, str]]) -> str:
    """Write problems, as (path, cause), in one line."""
    return "; ".join(f"{at}: {why}" if at else why for at, why in problems)


def _result_validator(spec: ToolSpec) -> Draft202012Validator:
    """Return the compiled validator of a tool's results; as it is written, fields may be added."""
    key = (spec.name, spec.version, "result")
    found = _compiled.get(key)
    if found is not None and (found[0] is spec.output_schema or found[0] == spec.output_schema):
        return found[1]
    schema: Json = spec.output_schema
    validator: Draft202012Validator = Re2Validator(
        schema, format_checker=_FORMATS, registry=Registry()
    )
    if len(_compiled) >= _MAX_COMPILED:
        _compiled.clear()
    _compiled[key] = (spec.output_schema, validator)
    return validator


def _errors(spec: ToolSpec, arguments: Json) -> list[ValidationError]:
    try:
        found = list(_validator(spec).iter_errors(arguments))
    except RecursionError:
        raise _refusal(spec, [("arguments", "are nested too deeply for the schema")]) from None
    return sorted(found, key=lambda e: list(map(str, e.path)))


def _validator(spec: ToolSpec) -> Draft202012Validator:
    """Return the compiled validator of a tool; the schema is compared, as tenants may share a name
    and version.
    """
    key = (spec.name, spec.version)
    found = _compiled.get(key)
    if found is not None and (found[0] is spec.input_schema or found[0] == spec.input_schema):
        return found[1]
    # An empty registry: a `$ref` to another host must never be fetched.
    validator: Draft202012Validator = Re2Validator(
        closed(spec.input_schema), format_checker=_FORMATS, registry=Registry()
    )
    if len(_compiled) >= _MAX_COMPILED:
        _compiled.clear()
    _compiled[key] = (spec.input_schema, validator)
    return validator


def closed(schema: Json) -> Json:
    """Copy a schema so that its objects refuse fields they do not name.

    `unevaluatedProperties` sees through `$ref`, `allOf` and `if`, which `additionalProperties` does
    not. Inside a schema that uses `allOf` only the top level is closed: a branch cannot know the
    fields of its siblings.
    """
    nested = '"allOf"' not in json.dumps(schema)
    return _close_object(_close_below(schema) if nested else schema)


def _close_below(schema: Json) -> Json:
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for key in ("properties", "$defs"):
        if isinstance(schema.get(key), dict):
            out[key] = {name: _close_named(part) for name, part in schema[key].items()}
    if isinstance(schema.get("items"), dict):
        out["items"] = _close_named(schema["items"])
    return out


def _close_named(schema: Json) -> Json:
    """Close an object that lists fields; one without a list is free-form on purpose."""
    below = _close_below(schema)
    lists_fields = isinstance(below, dict) and "properties" in below
    return _close_object(below) if lists_fields else below


def _close_object(schema: dict[str, Json]) -> dict[str, Json]:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return schema
    return {**schema, "unevaluatedProperties": False}


def _explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Say where and why, without quoting more of the value than helps."""
    path = _path(error)
    limit: Json = error.validator_value
    match error.validator:
        case "required":
            given = cast("dict[str, Json]", error.instance)
            missing = [name for name in limit if name not in given]
            name = next((n for n in missing if error.message.startswith(repr(n))), "")
            yield _join(path, name), "is required and missing"
        case "additionalProperties" | "unevaluatedProperties":
            yield from _unknown_fields(error, path)
        case "type":
            wanted = " or ".join(limit) if isinstance(limit, list) else limit
            yield path, f"must be of type {wanted}, not {_kind(error.instance)}"
        case "enum":
            yield path, f"must be one of {_short(limit)}, not {_short(error.instance)}"
        case "const":
            yield path, f"must be {_short(limit)}, not {_short(error.instance)}"
        case "format":
            yield path, f"{_short(error.instance)} is not a valid {limit}{_EXAMPLES.get(limit, '')}"
        case "pattern":
            yield path, f"{_short(error.instance)} does not match the pattern {limit}"
        case "anyOf" | "oneOf" if error.context:
            # A branch of the right type that fails on a detail is the one that was meant.
            meant = [part for part in error.context if part.validator != "type"]
            yield from _explain(best_match(meant or error.context) or error.context[0])
        case rule:
            yield (
                path,
                _RULES.get(str(rule), "{value} breaks the rule {rule}: {limit}").format(
                    value=_short(error.instance), rule=rule, limit=_short(limit)
                ),
            )


_EXAMPLES = {
    "date": " (write it like 2024-05-31)",
    "date-time": " (write it like 2024-05-31T08:00:00Z, with the offset)",
    "uri": " (write the whole address, like https://example.org/page)",
    "email": " (write it like name@example.org)",
}

_RULES = {
    "minimum": "{value} is below the minimum of {limit}",
    "maximum": "{value} is above the maximum of {limit}",
    "exclusiveMinimum": "{value} must be above {limit}",
    "exclusiveMaximum": "{value} must be below {limit}",
    "multipleOf": "{value} must be a multiple of {limit}",
    "minLength": "{value} is shorter than {limit} characters",
    "maxLength": "{value} is longer than {limit} characters",
    "minItems": "has fewer than {limit} items",
    "maxItems": "has more than {limit} items",
    "uniqueItems": "must not repeat an item",
}


def _unknown_fields(error: ValidationError, path: str) -> Iterator[tuple[str, str]]:
    known = sorted(_known_fields(error.schema))
    fields: dict[str, Json] = cast("dict[str, Json]", error.instance)
    for name in fields:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known) or 'none'}"
        yield _join(path, name[:_MAX_VALUE_CHARS]), f"is not a field of this tool; {hint}"


def _known_fields(schema: Json) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    known = set(schema.get("properties", {}))
    for key in ("allOf", "anyOf", "oneOf"):
        known |= {name for branch in schema.get(key, ()) for name in _known_fields(branch)}
    return known


def _path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path = f"{path}[{part}]" if isinstance(part, int) else _join(path, str(part))
    return path or "arguments"


def _join(path: str, name: str) -> str:
    return name if path in ("", "arguments") else f"{path}.{name}"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _kind(value: Json) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _not_finite(value: Json, path: str) -> Iterator[str]:
    """Find NaN and Infinity: Python reads them from JSON text, and every comparison lets them
    pass.
    """
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _not_finite(part, _join(path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _not_finite(part, f"{path}[{index}]")


def _refusal(spec: ToolSpec, problems: list[tuple[str, str]]) -> Invalid:
    shown = problems[:_MAX_PROBLEMS]
    listed = "; ".join(f"`{path}`: {cause}" for path, cause in shown)
    more = len(problems) - len(shown)
    return Invalid(
        f"Tool {spec.name!r} was not run, its arguments are wrong: {listed}"
        f"{f'; and {more} more' if more else ''}. "
        "Correct these fields, keep the others, and call the tool again.",
        code="ARGUMENTS_INVALID",
        tool=spec.name,
        problems=[{"path": path, "cause": cause} for path, cause in shown],
    )


@_FORMATS.checks("date", raises=ValueError)
def _is_date(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return _DATE.fullmatch(value) is not None and bool(date.fromisoformat(value))


@_FORMATS.checks("date-time", raises=ValueError)
def _is_date_time(value: object) -> bool:
    """RFC 3339, so always with an offset."""
    if not isinstance(value, str):
        return True
    return _DATE_TIME.fullmatch(value) is not None and bool(datetime.fromisoformat(value.upper()))


@_FORMATS.checks("uri", raises=ValueError)
def _is_uri(value: object) -> bool:
    if not isinstance(value, str):
        return True
    parts = urlsplit(value)
    named = bool(parts.netloc or parts.path) and (not parts.netloc or parts.port != -1)
    return bool(parts.scheme) and named and _URI_FORBIDDEN.search(value) is None


@_FORMATS.checks("email")
def _is_email(value: object) -> bool:
    return not isinstance(value, str) or _EMAIL.fullmatch(value) is not None
