"""Schemas of an OpenAPI document as JSON Schema 2020-12 of their own: references resolved, what 3.0
says differently rewritten, what means nothing to a model left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harness_common.core import pointer
from harness_common.core.errors import Invalid

_SAID_ONLY_IN_OPENAPI: Final = frozenset(
    {"discriminator", "xml", "externalDocs", "example", "examples", "nullable", "deprecated"}
    | {"readOnly", "writeOnly", "$id", "$anchor", "$schema", "$dynamicRef", "$dynamicAnchor"}
    | {"patternProperties", "contentMediaType", "contentEncoding", "contentSchema"}
)
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_ONE: Final = frozenset({"items", "not", "additionalProperties", "propertyNames", "contains", "if"})
_MAX_REFS: Final = 100


class Unusable(Exception):
    """Why no tool can be made of it."""


class Document:
    """An OpenAPI document, in which references are followed."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = dict(root)
        version = str(root.get("openapi", ""))
        if not version.startswith(("3.0", "3.1", "3.2")):
            found = f"OpenAPI {version}" if version else "a document without `openapi`"
            raise Invalid(
                f"this is {found[:60]}; 3.0 and 3.1 are read. Swagger 2.0 can be converted first",
                code="OPENAPI_INVALID",
                field="document.openapi",
                value=version[:40],
            )
        if not isinstance(root.get("paths"), dict):
            raise Invalid(
                "the document has no `paths`", code="OPENAPI_INVALID", field="document.paths"
            )

    def at(self, node: Any) -> Any:  # noqa: ANN401 - any part of a document
        """Follow `$ref` until there is none; raises `Unusable`."""
        for _ in range(_MAX_REFS):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return node
            node = self.target(node["$ref"])
        raise Unusable("its references run in a circle")

    def target(self, ref: str) -> Any:  # noqa: ANN401 - any part of a document
        """Return what one reference means; raises `Unusable` for one that leaves the document."""
        if not ref.startswith("#/"):
            raise Unusable(f"it refers to {ref[:100]!r}, which is outside the document")
        found = pointer.follow(self.root, ref[1:])
        if found is pointer.NOTHING:
            raise Unusable(f"it refers to {ref[:100]!r}, which is not there")
        return found


class Schemas:
    """Collects the schemas of one operation; those that are referred to become `$defs`."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self.defs: dict[str, Any] = {}

    def read(self, schema: Any) -> Any:  # noqa: ANN401 - schemas are JSON
        """Return a schema in 2020-12; raises `Unusable`."""
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else {}
        if isinstance(schema.get("$ref"), str):
            kept = {k: v for k, v in schema.items() if k == "description" and isinstance(v, str)}
            return kept | {"$ref": f"#/$defs/{self._define(schema['$ref'])}"}
        out: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _SAID_ONLY_IN_OPENAPI or key.startswith("x-"):
                continue
            out[key] = self._value(key, value)
        _bounds(out)
        _without_read_only(out, schema, self._document)
        return _nullable(out) if schema.get("nullable") is True else out

    def _value(self, key: str, value: Any) -> Any:  # noqa: ANN401 - schemas are JSON
        if key in {"properties", "$defs", "dependentSchemas"} and isinstance(value, dict):
            return {name: self.read(part) for name, part in value.items()}
        if key in _MANY and isinstance(value, list):
            return [self.read(part) for part in value]
        return self.read(value) if key in _ONE else value

    def _define(self, ref: str) -> str:
        known = self._names.get(ref)
        if known is not None:
            return known
        if len(self._names) >= _MAX_REFS:
            raise Unusable(f"it refers to more than {_MAX_REFS} schemas")
        base = "".join(c if c.isalnum() or c in "_-" else "_" for c in ref.rpartition("/")[2])
        name, n = base or "schema", 2
        while name in self._names.values():
            name, n = f"{base}_{n}", n + 1
        self._names[ref] = name
        self.defs[name] = self.read(self._document.target(ref))
        return name


def _bounds(schema: dict[str, Any]) -> None:
    """Rewrite 3.0's `exclusiveMinimum: true` beside `minimum`; drop a null `required`."""
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        is_flag = isinstance(schema.get(exclusive), bool)
        if is_flag and schema.pop(exclusive) and plain in schema:
            schema[exclusive] = schema.pop(plain)
    if not isinstance(schema.get("required", []), list):
        del schema["required"]


def _without_read_only(out: dict[str, Any], schema: dict[str, Any], document: Document) -> None:
    """Leave out what only the server writes: a request must not have it."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    hidden = {
        name
        for name, part in properties.items()
        if isinstance(found := document.at(part), dict) and found.get("readOnly") is True
    }
    if not hidden:
        return
    out["properties"] = {k: v for k, v in out["properties"].items() if k not in hidden}
    if isinstance(out.get("required"), list):
        out["required"] = [name for name in out["required"] if name not in hidden]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]} if schema else schema
    out = schema | {"type": [kind, "null"]}
    if isinstance(out.get("enum"), list) and None not in out["enum"]:
        out["enum"] = [*out["enum"], None]
    return out
