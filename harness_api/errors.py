"""The one mapping from failures to HTTP: RFC 9457 problem details, each of which says what to do.

`app` registers these handlers; `middleware` uses `problem` for what fails before a route is
reached. Nothing else turns an exception into an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from harness_common.core.errors import (
    Conflict,
    Denied,
    HarnessError,
    Invalid,
    Limited,
    NewerVersion,
    NotFound,
    Permanent,
    Transient,
    Unauthenticated,
    UnknownOutcome,
)
from harness_common.crypto.aead import KeyMissing

log = structlog.get_logger()

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
_STATUS: Final[Mapping[type[HarnessError], int]] = {
    Unauthenticated: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    UnknownOutcome: 409,
    NewerVersion: 503,
    Invalid: 422,
    Limited: 429,
    Permanent: 502,
    Transient: 503,
}
"""The nearest class of an error's ancestry decides."""
_HTTP_CODE: Final = {
    400: "MALFORMED",
    404: "NO_SUCH_ROUTE",
    405: "METHOD_NOT_ALLOWED",
    413: "BODY_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
}


def request_id(request: Request) -> str:
    """Return the id of a request, as its answer carries it."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    rid: str,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build an answer of type `application/problem+json`."""
    body: dict[str, Any] = {
        "type": f"urn:harness:error:{code.lower().replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": rid,
    }
    content = orjson.dumps({**(more or {}), **body}, default=str)
    return Response(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def status_of(error: HarnessError) -> int:
    """Return the HTTP status of a named failure."""
    return next((_STATUS[c] for c in type(error).__mro__ if c in _STATUS), 500)


def headers_of(error: HarnessError, status: int) -> dict[str, str]:
    """Return the headers that an error's status asks for."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status == 503:
        return {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, Limited):
        return {"Retry-After": str(math.ceil(error.retry_after_s or RETRY_AFTER_S))}
    return {}


async def on_harness_error(request: Request, error: Exception) -> Response:
    """Answer with a named failure."""
    assert isinstance(error, HarnessError)
    status = status_of(error)
    if status >= 500:
        log.warning("request.failed", code=error.error_code, error=error.message)
    return problem(
        status,
        error.error_code,
        public_text(error, status),
        rid=request_id(request),
        more=error.detail,
        headers=headers_of(error, status),
    )


def public_text(error: HarnessError, status: int) -> str:
    """Say what went wrong; what Postgres or a host said stays in the log."""
    if status == 503 and not isinstance(error, KeyMissing):
        return "The service cannot do this right now. Nothing is lost; try again after Retry-After."
    return error.message


def describe(item: Mapping[str, Any]) -> dict[str, str]:
    """Turn one finding of pydantic into `field` and `message`."""
    where = [str(part) for part in item["loc"]]
    if len(where) > 1 and where[0] in {"body", "query", "path", "header"}:
        where = where[1:]
    field, kind = ".".join(where), item["type"]
    if kind == "extra_forbidden":
        message = f"unknown field {field!r}; remove it or check its spelling"
    elif kind == "missing":
        message = f"{field} is required"
    elif kind == "json_invalid":
        position = item["loc"][-1]
        return {
            "field": "body",
            "message": f"the body is not valid JSON (character {position}): "
            f"{item.get('ctx', {}).get('error', '')}",
        }
    else:
        message = f"{field}: {item['msg'][:1].lower()}{item['msg'][1:]}"
    return {"field": field, "message": message}


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Answer 422 with every finding; the first one is the detail."""
    assert isinstance(error, RequestValidationError)
    found = [describe(item) for item in error.errors()[:20]]
    first = found[0] if found else {"field": "", "message": "the request is invalid"}
    return problem(
        422,
        "INVALID",
        first["message"],
        rid=request_id(request),
        more={"field": first["field"], "errors": found},
    )


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer for what the router refuses: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"no route {request.url.path}; see /docs"
    elif error.status_code == 405:
        detail = f"{request.method} is not allowed on {request.url.path}; see Allow"
    code = _HTTP_CODE.get(error.status_code, "HTTP_ERROR")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return problem(error.status_code, code, detail, rid=request_id(request), headers=headers)


def _allowed(request: Request) -> list[str]:
    """List the methods of every route of this path; the router knows the first one's only."""
    routes = [r for r in request.app.routes if isinstance(r, APIRoute)]
    found = (r.methods for r in routes if r.path_regex.match(request.url.path))
    return sorted({method for methods in found for method in methods or ()})


async def on_data_error(request: Request, error: Exception) -> Response:
    """Answer 422 when a value got past validation that Postgres cannot hold; logged, since a rule
    is missing, without what Postgres says of it: that quotes the value.
    """
    log.warning("request.value_refused", error=type(error).__name__)
    detail = "a value does not fit into its column; shorten it or choose a smaller number"
    return problem(422, "INVALID", detail, rid=request_id(request))


async def on_clash(request: Request, error: Exception) -> Response:
    """Answer 409 when another request made the same thing first: a unique key stopped this one."""
    log.error("request.clashed", exc_info=error)
    detail = "another request changed the same thing at this moment; read it again, then repeat"
    return problem(409, "CONFLICT", detail, rid=request_id(request))


def internal_error(rid: str) -> Response:
    """Answer for an exception that nobody foresaw."""
    detail = (
        f"Something failed that should not. Report the request id {rid}; its cause is in the log."
    )
    return problem(500, "INTERNAL", detail, rid=rid)


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(HarnessError, on_harness_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(psycopg.DataError, on_data_error)
    app.add_exception_handler(psycopg.errors.UniqueViolation, on_clash)
