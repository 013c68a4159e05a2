"""Makes tools of the operations of an OpenAPI document (3.0 and 3.1).

Parameters become arguments of their own names, a request body the argument `body`. What cannot be
made a tool is left out with its reason; nothing is guessed. Used by the API and the CLI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from harness_common.contracts.http_tool import (
    EFFECT_OF,
    ToolDefinition,
    check_definition,
)
from harness_common.contracts.openapi_schema import Document, Schemas, Unusable
from harness_common.core.errors import Invalid

_METHODS: Final = ("get", "head", "post", "put", "patch", "delete")
_MAX_DESCRIPTION: Final = 4_000
_MALFORMED: Final = (TypeError, ValueError, AttributeError, KeyError)
"""What reading a part that is no OpenAPI raises: a list for an object, and the like."""
_NOT_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_HEADERS_OF_OURS: Final = frozenset({"accept", "content-type", "authorization"})
"""OpenAPI says that parameters of these names are to be ignored."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of a document."""

    only: tuple[str, ...] = ()
    """`GET:/pets` or an operationId; none means all."""
    server: str | None = None
    prefix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, str] = field(default_factory=dict)
    """By the same names as in `only`, where the method says it wrongly."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tool made of an operation, and what to look at before it is used."""

    operation: str
    definition: ToolDefinition
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """An operation of which no tool was made."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome."""

    tools: tuple[Found, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class _Operation:
    method: str
    path: str
    item: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.method.upper()}:{self.path}"

    @property
    def id(self) -> str:
        found = self.body.get("operationId")
        return found if isinstance(found, str) else ""

    def named_by(self, name: str) -> bool:
        method, colon, path = name.partition(":")
        return name == self.id or (
            bool(colon) and method.lower() == self.method and path == self.path
        )


def read_openapi(root: Mapping[str, Any], wanted: Wanted) -> Imported:
    """Make tools of a document; raises `Invalid` when it is none, or a name in `only` or `effects`
    is of no operation.
    """
    document = Document(root)
    operations = list(_operations(document))
    _check_names(operations, wanted)
    tools: dict[str, Found] = {}
    skipped: list[Skipped] = []
    for operation in operations:
        if wanted.only and not any(operation.named_by(name) for name in wanted.only):
            continue
        try:
            found = _tool(document, operation, wanted)
            if found.definition.name in tools:
                raise Unusable(f"another operation is named {found.definition.name!r} already")
        except (Unusable, Invalid, RecursionError, *_MALFORMED) as problem:
            skipped.append(Skipped(operation.label, _reason(problem)))
        else:
            tools[found.definition.name] = found
    return Imported(tuple(tools.values()), tuple(skipped))


def _check_names(operations: list[_Operation], wanted: Wanted) -> None:
    for option in ("only", "effects"):
        for name in getattr(wanted, option):
            if not any(operation.named_by(name) for operation in operations):
                raise Invalid(
                    f"{option}: the document has no operation {name[:100]!r}; name one as "
                    "GET:/path or by its operationId",
                    code="OPENAPI_INVALID",
                    field=option,
                    value=name[:100],
                )


def _reason(problem: Exception) -> str:
    """Say why an operation is left out."""
    if isinstance(problem, Invalid):
        return problem.message
    if isinstance(problem, ValidationError):
        first = problem.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(problem, _MALFORMED):
        return "it is not as OpenAPI says that it should be"
    return (
        "its schemas are nested too deeply" if isinstance(problem, RecursionError) else str(problem)
    )


def _operations(document: Document) -> Iterator[_Operation]:
    for path, raw in document.root["paths"].items():
        try:
            item = document.at(raw)
        except Unusable:
            continue
        if not isinstance(item, dict):
            continue
        for method in _METHODS:
            if isinstance(item.get(method), dict):
                yield _Operation(method, path, item, item[method])


def _tool(document: Document, operation: _Operation, wanted: Wanted) -> Found:
    schemas, request = Schemas(document), _Request(dict(wanted.headers), dict(wanted.query))
    for raw in _parameters(document, operation):
        request.add(raw, schemas, document)
    _body(document, operation, request, schemas)
    warnings = _credentials(document, operation, wanted)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": request.properties,
        "additionalProperties": False,
    }
    if request.required:
        schema["required"] = request.required
    if schemas.defs:
        schema["$defs"] = schemas.defs
    effect = next((e for n, e in wanted.effects.items() if operation.named_by(n)), None)
    method = operation.method.upper()
    definition = ToolDefinition.model_validate(
        {
            "name": _name(operation, wanted.prefix),
            "description": _description(document, operation, effect or EFFECT_OF[method].value),
            "input_schema": schema,
            "effect": effect,
            "http": {
                "method": method,
                "url": _server(document, operation, wanted) + _path(operation, request),
                "query": request.query,
                "headers": request.headers,
                "body": request.body,
                "body_type": request.body_type,
            },
        }
    )
    check_definition(definition)
    return Found(operation.label, definition, tuple(warnings))


@dataclass(slots=True)
class _Request:
    """The mapping of an operation, as it is put together."""

    headers: dict[str, str]
    query: dict[str, str]
    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    body: Any = None
    body_type: str = "json"

    def add(self, raw: Mapping[str, Any], schemas: Schemas, document: Document) -> None:
        """Take in one parameter; raises `Unusable` for a required one that cannot be sent."""
        name, place = str(raw.get("name", "")), raw.get("in")
        required = raw.get("required") is True
        if place == "header" and name.lower() in _HEADERS_OF_OURS:
            return
        given = {"query": self.query, "header": self.headers}.get(str(place), {})
        if any(name.lower() == known.lower() for known in given):
            return  # the importer sends it always, as a credential for example
        if place == "cookie" or (place == "query" and not _is_plain(raw, document)):
            if required:
                raise Unusable(f"it requires {name[:60]!r} in a form that is not supported")
            return
        if name in self.properties:
            raise Unusable(f"two of its parameters are called {name[:60]!r}")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
            raise Unusable(f"its parameter {name[:60]!r} has a name that cannot be an argument")
        self.properties[name] = _described(raw, schemas)
        if required or place == "path":
            self.required.append(name)
        if place != "path":
            given[name] = f"{{{name}}}"


def _described(raw: Mapping[str, Any], schemas: Schemas) -> Any:  # noqa: ANN401 - JSON
    """Return the schema of a parameter with what is said of it."""
    schema = schemas.read(raw.get("schema", {"type": "string"}))
    text = raw.get("description")
    if isinstance(schema, dict) and isinstance(text, str) and text.strip():
        return schema | {"description": text.strip()[:1_000]}
    return schema


def _is_plain(raw: Mapping[str, Any], document: Document) -> bool:
    """Tell whether a query parameter is sent as name=value, repeated for a list (style form)."""
    if raw.get("style", "form") != "form" or "content" in raw:
        return False
    schema = document.at(raw.get("schema", {}))
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind != "object" and not (kind == "array" and raw.get("explode") is False)


def _parameters(document: Document, operation: _Operation) -> list[Mapping[str, Any]]:
    """List parameters of path and operation; the operation's own go before."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for source in (operation.item.get("parameters"), operation.body.get("parameters")):
        for raw in source if isinstance(source, list) else ():
            one = document.at(raw)
            if isinstance(one, dict):
                found[str(one.get("in")), str(one.get("name"))] = one
    return list(found.values())


def _body(document: Document, operation: _Operation, request: _Request, schemas: Schemas) -> None:
    raw = document.at(operation.body.get("requestBody"))
    if not isinstance(raw, dict) or operation.method in {"get", "head"}:
        return
    content = raw.get("content")
    kinds = content if isinstance(content, dict) else {}
    for kind, body_type in _BODY_KINDS:
        found = next((v for k, v in kinds.items() if kind.fullmatch(k.partition(";")[0])), None)
        if found is None:
            continue
        if "body" in request.properties:
            raise Unusable("it has a parameter 'body' beside a request body")
        schema = schemas.read(found.get("schema", {}) if isinstance(found, dict) else {})
        request.properties["body"] = schema
        request.body_type = body_type
        if body_type == "form":
            request.body = _form(schema, schemas, request)
            return
        request.body = "{body}"
        if raw.get("required") is True:
            request.required.append("body")
        return
    if raw.get("required") is True:
        raise Unusable(f"it takes a body of {', '.join(kinds) or 'no known kind'}")


def _form(schema: Any, schemas: Schemas, request: _Request) -> dict[str, str]:  # noqa: ANN401
    """Make an argument of each field of a form."""
    del request.properties["body"]
    if isinstance(schema, dict) and "$ref" in schema:
        schema = schemas.defs.get(schema["$ref"].rpartition("/")[2])
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or request.properties.keys() & fields.keys():
        raise Unusable("its form has no fields of its own names")
    request.properties.update(fields)
    request.required += [n for n in schema.get("required", []) if n in fields]
    return {name: f"{{{name}}}" for name in fields}


_BODY_KINDS: Final = (
    (re.compile(r"application/([a-z0-9.+-]+\+)?json", re.IGNORECASE), "json"),
    (re.compile(r"application/x-www-form-urlencoded", re.IGNORECASE), "form"),
)


def _path(operation: _Operation, request: _Request) -> str:
    """Return the path with placeholders; raises `Unusable` for one that nothing declares."""
    for name in re.findall(r"\{([^{}]*)\}", operation.path):
        if name not in request.properties:
            raise Unusable(f"its path has {{{name[:60]}}}, which no parameter declares")
    return operation.path


def _server(document: Document, operation: _Operation, wanted: Wanted) -> str:
    """Return the base address, without a slash at its end; raises `Unusable`."""
    if wanted.server is not None:
        return wanted.server.rstrip("/")
    for source in (operation.body, operation.item, document.root):
        servers = source.get("servers")
        first = servers[0] if isinstance(servers, list) and servers else None
        if isinstance(first, dict) and isinstance(first.get("url"), str):
            url = _filled(first["url"], first.get("variables"))
            if not re.match(r"https?://", url):
                raise Unusable(f"its server is {url[:80]!r}; say where it is with a server")
            return url.rstrip("/")
    raise Unusable("the document names no server; say where it is with a server")


def _filled(url: str, variables: Any) -> str:  # noqa: ANN401 - any part of a document
    """Put the defaults of server variables in."""
    for name, about in variables.items() if isinstance(variables, dict) else ():
        default = about.get("default") if isinstance(about, dict) else None
        url = url.replace(f"{{{name}}}", str(default if default is not None else ""))
    return url


def _name(operation: _Operation, prefix: str) -> str:
    text = operation.id or operation.method + operation.path
    plain = _NOT_A_NAME.sub("_", text).strip("_-") or operation.method
    return (prefix + plain)[:64]


def _description(document: Document, operation: _Operation, effect: str) -> str:
    """Write a manual: what it does, what comes back, what can go wrong, what repeating it does."""
    texts = [operation.body.get("summary"), operation.body.get("description")]
    parts = [t.strip() for t in texts if isinstance(t, str) and t.strip()]
    if len(parts) == 2 and parts[0].rstrip(".") in parts[1]:
        parts = parts[1:]
    answers = operation.body.get("responses")
    good: list[tuple[str, str]] = []
    bad: list[tuple[str, str]] = []
    for status, raw in answers.items() if isinstance(answers, dict) else ():
        try:
            about = document.at(raw)
        except Unusable:
            continue
        text = about.get("description") if isinstance(about, dict) else None
        if isinstance(text, str) and text.strip():
            line = " ".join(text.split())[:200]
            (good if str(status).startswith("2") else bad).append((str(status), line))
    if good:
        parts.append(f"Returns: {good[0][1]}")
    if bad:
        parts.append("Errors: " + "; ".join(f"{s}: {t}" for s, t in bad[:8]))
    if operation.body.get("deprecated") is True:
        parts.append("Deprecated: prefer another tool.")
    parts.append(f"{operation.method.upper()} {operation.path}. {_MEANS[effect]}")
    return "\n\n".join(parts)[:_MAX_DESCRIPTION]


_MEANS: Final = {
    "read": "It only reads.",
    "idempotent": "It changes something; the same call twice is the same change.",
    "write": "It changes something each time: call it once.",
}


def _credentials(document: Document, operation: _Operation, wanted: Wanted) -> list[str]:
    """Say which credentials the operation asks for that nothing sends."""
    asked = operation.body.get("security", document.root.get("security"))
    if not isinstance(asked, list) or not asked or {} in asked or wanted.headers or wanted.query:
        return []
    names = sorted({str(name) for one in asked if isinstance(one, dict) for name in one})
    return [
        f"it asks for credentials ({', '.join(names)}): send them as a header such as "
        "Authorization: Bearer secret://NAME"
    ]
