"""The OpenAPI document: what FastAPI derives, with our errors as `application/problem+json`
everywhere.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from harness_api.errors import MEDIA_TYPE
from harness_api.schemas.problem import Problem

_REF: Final = {"$ref": "#/components/schemas/Problem"}
_COMMON: Final = {
    "401": "No key, or one that is unknown, revoked or expired.",
    "403": "The key lacks the permission.",
    "422": "The request is invalid; `errors` names every field.",
    "503": "A dependency is away; try again after Retry-After.",
}
_WITH_BODY: Final = {
    "413": "The body is too large.",
    "415": "The body is not JSON.",
}
_DESCRIPTION: Final = """Start agent runs, watch them, stop them, and read everything that happened.

Lists are pages: `{data, next_cursor}`. Times are RFC 3339 in UTC. Every answer has a `Request-Id`;
every error is `application/problem+json` (RFC 9457) with a stable `code`."""


def _answer(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": _REF}}}


def _finish_operation(operation: dict[str, Any], guarded: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if guarded:
        extra = _COMMON | (_WITH_BODY if "requestBody" in operation else {})
        for status, description in extra.items():
            responses.setdefault(status, _answer(description))
    responses["default"] = _answer("Any other failure.")


def install(app: FastAPI) -> None:
    """Replace the app's OpenAPI function; the document is built once."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=_DESCRIPTION,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(problem.pop("$defs", {}))
            schemas["Problem"] = problem
            for path, item in document["paths"].items():
                for operation in item.values():
                    _finish_operation(operation, path.startswith("/v1/"))
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
