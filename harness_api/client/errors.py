"""What a request can end in besides an answer: refused, unreachable, or not a Harness server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from harness_common.core.errors import HarnessError, Permanent, Transient


class ApiError(HarnessError):
    """The server refused, with a problem document (RFC 9457).

    `code` is stable, `message` says what to do, `request_id` finds the request in the server's log.
    """

    code: str  # type: ignore[misc]  # each answer has its own

    def __init__(
        self,
        message: str,
        /,
        *,
        status: int,
        code: str,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, code=code, **{"status": status, "request_id": request_id})
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.problem: Mapping[str, Any] = problem or {}

    @property
    def field(self) -> str | None:
        """The field that was wrong, if it was one."""
        found = self.problem.get("field")
        return found if isinstance(found, str) else None

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """All findings about fields: `field` and `message` each."""
        found = self.problem.get("errors")
        return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


class Unreachable(Transient):
    """No answer: nobody listens there, or the connection broke and it was unsafe to ask again."""

    code = "UNREACHABLE"


class BadAnswer(Permanent):
    """Something answered that is not a Harness API."""

    code = "BAD_ANSWER"


def retry_after_s(headers: httpx.Headers) -> float | None:
    """Read `Retry-After` in seconds; dates, which our server never sends, count as not given."""
    text = headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdigit() else None


def error_of(response: httpx.Response) -> ApiError:
    """Turn an answer that is not 2xx into an error. Its body must have been read."""
    try:
        found = json.loads(response.content)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) and "code" in found else {}
    detail = problem.get("detail") or (
        f"{response.request.url} answered {response.status_code} {response.reason_phrase} "
        "without a problem document; is that a Harness API, or a proxy before it?"
    )
    return ApiError(
        str(detail),
        status=response.status_code,
        code=str(problem.get("code") or f"HTTP_{response.status_code}"),
        request_id=problem.get("request_id") or response.headers.get("Request-Id"),
        retry_after_s=retry_after_s(response.headers),
        problem=problem,
    )


def unreachable(error: httpx.TransportError, request: httpx.Request) -> Unreachable:
    """Turn a failure of the connection into an error that says where and what to do."""
    where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
    what = str(error) or type(error).__name__
    return Unreachable(
        f"Cannot reach the Harness API at {where}: {what}. "
        "Is it running (`harness dev`, `harness api`), and is HARNESS_API_URL right?",
        url=where,
    )
