"""Checks of names and schemas of tools, the same wherever a tool comes from.

The worker's registry asks for the tools it holds; the API asks for those that a tenant brings, of
which more is asked: their schemas are run against a model's arguments in a process that serves
everybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import re2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from harness_common.core import pointer
from harness_common.core.errors import Invalid
from harness_common.core.message import Json

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
MAX_DEPTH: Final = 40
MAX_NODES: Final = 5_000
_NOT_OURS: Final = frozenset(
    {"$id", "$dynamicRef", "$dynamicAnchor", "$anchor", "patternProperties"}
)
_OF_NAMES: Final = frozenset(
    {"properties", "$defs", "definitions", "dependentSchemas", "dependentRequired"}
)
"""Keywords whose object has names that the author chose: none of those is a keyword."""
_PATTERN_OPTIONS: Final = re2.Options()
_PATTERN_OPTIONS.log_errors = False


def invalid(name: str, cause: str, at: str | None = None) -> Invalid:
    """Word a refusal; `at` is a JSON pointer into the schema or the definition."""
    detail = {} if at is None else {"pointer": at}
    return Invalid(f"Tool {name[:80]!r} {cause}.", code="TOOL_INVALID", tool=name, **detail)


def check_name(name: str) -> None:
    """Refuse a name that a provider would choke on; raises `Invalid` (`TOOL_INVALID`)."""
    if _NAME.fullmatch(name) is None:
        raise invalid(name, "has a bad name; use 1 to 64 of the characters a-z A-Z 0-9 _ -")


def check_schema(
    name: str, schema: Json, what: str = "input schema", *, any_type: bool = False
) -> None:
    """Refuse a schema that is not one, or whose references lead nowhere; raises `Invalid` with the
    JSON pointer. Unless it is of `any_type`, it has an object at the top.
    """
    if not any_type and (not isinstance(schema, dict) or schema.get("type") != "object"):
        raise invalid(name, f'has an {what} that is not `"type": "object"` at the top', "")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as problem:
        at = pointer.write(problem.absolute_path)
        cause = f"has an invalid {what} at {at or 'its top'}: {problem.message[:300]}"
        raise invalid(name, cause, at) from problem
    for path, node in _nodes(schema):
        for key in ("$ref", "$dynamicRef"):
            target = node.get(key)
            if isinstance(target, str) and not _leads_somewhere(schema, target):
                at = pointer.write((*path, key))
                raise invalid(name, f"has an {what} whose {at} {target!r} is not inside it", at)


def check_tenant_schema(name: str, schema: Json) -> None:
    """Refuse what a tenant's schema could hang or break a shared worker with; raises `Invalid`.

    Patterns must be those of RE2, which takes linear time.
    """
    names: set[int] = set()
    for nodes, (path, node) in enumerate(_nodes(schema)):
        if nodes >= MAX_NODES or len(path) > MAX_DEPTH:
            raise invalid(
                name,
                f"has an input schema of more than {MAX_NODES} parts or {MAX_DEPTH} levels",
                pointer.write(path[:8]),
            )
        if id(node) in names:
            continue  # a property may have any name
        names |= {id(node[key]) for key in _OF_NAMES & node.keys() if node[key]}
        for key in sorted(_NOT_OURS & node.keys()):
            at = pointer.write((*path, key))
            raise invalid(name, f"has an input schema with {key} (at {at}), which is not taken", at)
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            _check_pattern(name, pattern, pointer.write((*path, "pattern")))
    for path, node in _nodes(schema):
        target = None if id(node) in names else node.get("$ref")
        if isinstance(target, str) and id(pointer.follow(schema, target[1:])) in names:
            # Read as a schema, its names would be keywords that nobody has looked at.
            at = pointer.write((*path, "$ref"))
            raise invalid(name, f"has an input schema whose {at} {target!r} is no schema", at)
    check_schema(name, schema)


def _check_pattern(name: str, pattern: str, at: str) -> None:
    try:
        re2.compile(pattern, options=_PATTERN_OPTIONS)
    except re2.error as problem:
        cause = f"has a pattern at {at} that is not of the RE2 syntax ({str(problem)[:100]})"
        raise invalid(
            name, f"{cause}; it has no look-around and no back-references", at
        ) from problem


def is_linear(pattern: str) -> bool:
    """Tell whether RE2 takes a pattern, which then takes linear time."""
    try:
        re2.compile(pattern, options=_PATTERN_OPTIONS)
    except re2.error:
        return False
    return True


def _pattern_by(otherwise: Callable[[str, str], bool]) -> Any:  # noqa: ANN401 - jsonschema's own
    """Return the keyword `pattern` run by RE2; `otherwise` says of a pattern and a text whether
    they match where RE2 does not take the pattern.
    """

    def check(
        validator: Draft202012Validator, pattern: str, instance: Json, schema: Json
    ) -> Iterator[ValidationError]:
        del validator, schema
        if not isinstance(instance, str):
            return
        try:
            found = re2.search(pattern, instance, options=_PATTERN_OPTIONS) is not None
        except re2.error:
            found = otherwise(pattern, instance)
        if not found:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    return check


Re2Validator: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"pattern": _pattern_by(lambda p, text: re.search(p, text) is not None)}
)
"""Runs patterns by RE2, in linear time: a tenant's must not hold up a process that others share.
What RE2 does not take is run by `re`: only the operator's own tools, and policies stored before
such patterns were refused, have them.
"""
_Stranger: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"pattern": _pattern_by(lambda _pattern, _text: True)}
)


def stranger_validator(schema: Json) -> Draft202012Validator:
    """Return a validator for a schema that anybody may have written: every pattern takes linear
    time or is left to whoever runs the tool, and nothing is fetched.
    """
    validator: Draft202012Validator = _Stranger(_without_slow(schema), registry=Registry())
    return validator


def _without_slow(schema: Json) -> Json:
    """Leave out the keyword whose patterns would be run in another way."""
    if isinstance(schema, list):
        return [_without_slow(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_slow(part) for k, part in schema.items() if k != "patternProperties"}


def _nodes(schema: Json) -> Iterator[tuple[tuple[str | int, ...], dict[str, Json]]]:
    """Give every object in a schema with its path, without recursion."""
    todo: list[tuple[tuple[str | int, ...], Json]] = [((), schema)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, dict):
            yield path, node
            todo.extend(((*path, key), part) for key, part in node.items())
        elif isinstance(node, list):
            todo.extend(((*path, index), part) for index, part in enumerate(node))


def _leads_somewhere(root: Json, target: str) -> bool:
    if target == "#":
        return True
    return target.startswith("#/") and pointer.follow(root, target[1:]) is not pointer.NOTHING
