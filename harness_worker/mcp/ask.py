"""Questions of MCP servers to a person: how they are put, and what an answer in words means.

A server asks with a flat form (JSON Schema of strings, numbers, booleans and choices) or with an
address to visit. A person answers with the value (one field), with a JSON object (several), or
with `decline`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from harness_common.contracts.tool_schema import stranger_validator
from harness_common.core.mcp import digest

ACCEPT: Final = "accept"
DECLINE: Final = "decline"
_MAX_MESSAGE: Final = 2_000
_TRUE: Final = frozenset({"true", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "n", "0"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One question."""

    message: str
    schema: Mapping[str, Any]
    url: str | None
    digest: str
    """The same for the same question, whenever it comes."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the fields of its form."""
        found = self.schema.get("properties")
        return found if isinstance(found, dict) else {}


class NotAnswered(Exception):
    """The words are no answer to the question; the text says why."""


def asked_of(params: types.ElicitRequestParams) -> Asked:
    """Read a question from the wire."""
    if isinstance(params, types.ElicitRequestURLParams):
        return Asked(params.message, {}, params.url, digest([params.message, params.url]))
    schema = params.requested_schema
    return Asked(params.message, schema, None, digest([params.message, schema]))


def to_json(asked: Asked) -> dict[str, Any]:
    """Write a question as part of what a call keeps."""
    return {
        "message": asked.message,
        "schema": dict(asked.schema),
        "url": asked.url,
        "digest": asked.digest,
    }


def from_json(kept: Mapping[str, Any]) -> Asked:
    """Read what `to_json` wrote."""
    return Asked(kept["message"], kept["schema"], kept["url"], kept["digest"])


def words(server: str, asked: Asked, why_again: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the question as a person reads it, and the choices of an answer (none: free text)."""
    lines = [f"The MCP server {server!r} asks: {asked.message[:_MAX_MESSAGE]}"]
    if why_again:
        lines.append(f"(The last answer could not be used: {why_again})")
    if asked.url is not None:
        lines.append(f"Open this address, then answer {ACCEPT}: {asked.url[:_MAX_MESSAGE]}")
        return "\n".join(lines), (ACCEPT, DECLINE)
    if not asked.fields:
        return "\n".join(lines), (ACCEPT, DECLINE)
    required = set(asked.schema.get("required") or ())
    for name, field in asked.fields.items():
        lines.append(f"- {name}: {_described(field)}{'' if name in required else ' (optional)'}")
    if len(asked.fields) == 1:
        lines.append(f"Answer with the value, or {DECLINE}.")
    else:
        lines.append(f"Answer with a JSON object of these fields, or {DECLINE}.")
    return "\n".join(lines), ()


def _described(field: Any) -> str:  # noqa: ANN401 - a JSON Schema from outside
    if not isinstance(field, dict):
        return "any"
    kind = str(field.get("type", "text"))
    parts = [kind]
    if choices := _choices(field):
        parts.append("one of " + ", ".join(choices[:50]))
    if text := field.get("description") or field.get("title"):
        parts.append(str(text)[:300])
    if "default" in field:
        parts.append(f"default {json.dumps(field['default'])[:100]}")
    return "; ".join(parts)


def _choices(field: Mapping[str, Any]) -> list[str]:
    if isinstance(field.get("enum"), list):
        return [str(value) for value in field["enum"]]
    listed = field.get("oneOf") or field.get("anyOf")
    if isinstance(listed, list):
        return [str(one["const"]) for one in listed if isinstance(one, dict) and "const" in one]
    return []


def result_of(asked: Asked, text: str) -> types.ElicitResult:
    """Return what a person's words mean for the server; raises `NotAnswered`."""
    said = text.strip()
    if said.lower() == DECLINE:
        return declined()
    if asked.url is not None or not asked.fields:
        if said.lower() != ACCEPT:
            raise NotAnswered(f"answer {ACCEPT} or {DECLINE}")
        return types.ElicitResult(action="accept", content=None if asked.url else {})
    content = _with_defaults(asked, _content(asked, said))
    problem = next(stranger_validator(dict(asked.schema)).iter_errors(content), None)
    if problem is not None:
        raise NotAnswered(problem.message[:300])
    return types.ElicitResult(action="accept", content=content)


def accept_defaults(asked: Asked) -> types.ElicitResult:
    """Accept a form as it is offered."""
    return types.ElicitResult(action="accept", content=_with_defaults(asked, {}))


def _content(asked: Asked, said: str) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except ValueError:
        found = said
    if isinstance(found, dict):
        return found
    if said.lower() == ACCEPT:
        return {}
    if len(asked.fields) != 1:
        raise NotAnswered(f"a JSON object with {', '.join(asked.fields)} is needed")
    ((name, field),) = asked.fields.items()
    return {name: _as_type(field, said, found)}


def _as_type(field: Any, said: str, found: Any) -> Any:  # noqa: ANN401 - JSON
    kind = field.get("type") if isinstance(field, dict) else None
    if kind == "string":
        return said
    if kind == "boolean" and said.lower() in _TRUE | _FALSE:
        return said.lower() in _TRUE
    if kind == "array" and not isinstance(found, list):
        return [part.strip() for part in said.split(",")]
    return found


def _with_defaults(asked: Asked, content: dict[str, Any]) -> dict[str, Any]:
    defaults = {
        name: field["default"]
        for name, field in asked.fields.items()
        if isinstance(field, dict) and "default" in field
    }
    return defaults | content


def declined() -> types.ElicitResult:
    """Say no."""
    return types.ElicitResult(action="decline")


def cancelled() -> types.ElicitResult:
    """Say that nobody has decided."""
    return types.ElicitResult(action="cancel")
