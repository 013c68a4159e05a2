"""Errors of the Responses face in the form that the `openai` clients read.

The clients repeat what is answered with 408, 409, 429 and 5xx. What a repeat cannot help says so
(`x-should-retry`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from harness_api.errors import MEDIA_TYPE, describe, headers_of, public_text, status_of
from harness_api.routing import JsonRoute
from harness_common.core.errors import HarnessError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openai_error(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build an error answer."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code.lower()}}
    more = dict(headers or {})
    if status == 409:
        more["x-should-retry"] = "false"
    return Response(orjson.dumps(body), status, headers=more, media_type="application/json")


def _of_failure(error: HarnessError) -> Response:
    status = status_of(error)
    text = public_text(error, status)
    field = error.detail.get("field")
    status = 400 if status == 422 else status
    param = str(field) if field is not None else None
    return openai_error(status, error.error_code, text, param, headers_of(error, status))


def _of_findings(error: RequestValidationError) -> Response:
    found = [describe(dict(item)) for item in error.errors()[:20]]
    first = found[0] if found else {"field": "", "message": "the request is invalid"}
    message = "; ".join(f["message"] for f in found) or first["message"]
    return openai_error(400, "INVALID", message, first["field"] or None)


class _Route(JsonRoute):
    """A route whose failures are answered in the clients' form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except HarnessError as error:
                return _of_failure(error)
            except RequestValidationError as error:
                return _of_findings(error)

        return answer


def new_openai_router(prefix: str, tag: str) -> APIRouter:
    """Make a router of this face."""
    answers: dict[int | str, dict[str, Any]] = {
        status: {
            "description": "The error in the form of the OpenAI API.",
            "content": {"application/json": {"schema": SCHEMA}},
        }
        for status in (400, 401, 403, 404, 409)
    }
    answers[503] = {
        "description": "A dependency is away, or the server is busy; try again after Retry-After.",
        "content": {
            "application/json": {"schema": SCHEMA},
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}},
        },
    }
    return APIRouter(prefix=prefix, tags=[tag], route_class=_Route, responses=answers)
