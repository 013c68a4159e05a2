"""The OpenAPI document for readers: the page /docs and docs/api.md are made of this.

Nothing is loaded from elsewhere: a page that needs a script of somebody's network is no help on a
machine without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from harness_api.auth import permission_of

Document = Mapping[str, Any]
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_REF: Final = "#/components/schemas/"
_LIMITS: Final = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {}"),
    ("maxItems", "at most {}"),
    ("pattern", "`{}`"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A field of a body, or a parameter."""

    name: str
    place: str
    """`path`, `query`, `header`, or empty for a field."""
    type: str
    required: bool
    note: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that the API can be asked."""

    id: str
    method: str
    path: str
    text: str
    permission: str
    """Empty: no key is needed."""
    parameters: Sequence[Value]
    body: str
    answers: Sequence[tuple[str, str]]
    """Status and schema of what it answers when it worked."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The form of a body."""

    name: str
    text: str
    fields: Sequence[Value]


def operations(app: FastAPI) -> dict[str, list[Operation]]:
    """Return what the API can be asked, by subject, in the order of its routes."""
    needs = {r.operation_id: permission_of(r) for r in app.routes if isinstance(r, APIRoute)}
    found: dict[str, list[Operation]] = {}
    for path, item in app.openapi()["paths"].items():
        for method in (m for m in _METHODS if m in item):
            raw = item[method]
            made = _operation(method, path, raw, needs.get(raw["operationId"]) or "")
            found.setdefault((raw.get("tags") or ["other"])[0], []).append(made)
    return found


def schemas(document: Document) -> list[Schema]:
    """Return the forms of bodies, by name."""
    return [
        Schema(name, clean(raw.get("description", "")), list(_fields(raw)))
        for name, raw in sorted(document["components"]["schemas"].items())
    ]


def _operation(method: str, path: str, raw: Document, permission: str) -> Operation:
    parameters = [
        Value(
            p["name"],
            p["in"],
            shape(p["schema"]),
            bool(p.get("required")),
            clean(p.get("description") or _note(p["schema"])),
        )
        for p in raw.get("parameters", ())
    ]
    body = raw.get("requestBody", {}).get("content", {})
    return Operation(
        id=raw["operationId"],
        method=method.upper(),
        path=path,
        text=clean(raw.get("description", "")),
        permission=permission,
        parameters=parameters,
        body=next((shape(c["schema"]) for c in body.values() if "schema" in c), ""),
        answers=list(_answers(raw)),
    )


def _answers(raw: Document) -> Iterator[tuple[str, str]]:
    for status, answer in raw["responses"].items():
        if not status.startswith(("2", "3")):
            continue
        kinds = answer.get("content", {})
        for kind, content in kinds.items():
            form = shape(content.get("schema", {}))
            yield status, form if kind == "application/json" and form != "any" else kind
        if not kinds:
            yield status, ""


def _fields(raw: Document) -> Iterator[Value]:
    required = set(raw.get("required", ()))
    for name, schema in raw.get("properties", {}).items():
        yield Value(name, "", shape(schema), name in required, _note(schema))
    if "enum" in raw:
        yield Value("(value)", "", shape({"enum": raw["enum"]}), True, "")


def shape(schema: Document) -> str:
    """Write a schema as a type: `text`, `array of RunView`, `"a" or "b"`, `integer or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(shape(one) for one in schema[several]))
    if len(schema.get("allOf", ())) == 1:
        return shape(schema["allOf"][0])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    return _plain(schema)


def _plain(schema: Document) -> str:
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {shape(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {shape(schema['additionalProperties'])}"
    if kind == "string":
        return {"date-time": "time", "binary": "bytes"}.get(schema.get("format", ""), "text")
    return str(kind)


def _note(schema: Document) -> str:
    """Say what a type does not: its description, limits and default."""
    parts = [clean(schema.get("description", ""))]
    for one in (schema, *schema.get("anyOf", ())):
        if one is not schema and one.get("description") and not parts[0]:
            parts[0] = clean(one["description"])
        for key, words in _LIMITS:
            if key in one:
                limit = one[key]
                whole = isinstance(limit, float) and limit.is_integer()
                parts.append(words.format(f"{limit:.0f}" if whole else limit))
    default = schema.get("default")
    if default not in (None, [], {}, ""):
        parts.append(f"default {default}")
    text = parts[0].rstrip()
    rest = ", ".join(dict.fromkeys(parts[1:]))
    if text and rest and not text.endswith((".", ":")):
        text += "."
    return " ".join(p for p in (text, rest) if p)


def clean(text: str) -> str:
    """Return a docstring on one line."""
    return " ".join(text.split())
