"""Turn what a server of the Messages API says when it refuses into one of our errors.

Used for HTTP answers and for `error` events in the middle of a stream. The only place of this
provider that classifies; nothing is retried here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Json
from harness_common.core.throttle import Rate
from harness_worker.models.openai_errors import Origin
from harness_worker.models.redact import redact
from harness_worker.models.retry_after import rate_of, retry_after_s, should_retry

_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_PERMANENT: Final = {
    401: "MODEL_AUTH",
    402: "INSUFFICIENT_QUOTA",
    403: "MODEL_AUTH",
    404: "MODEL_NOT_FOUND",
    413: "REQUEST_TOO_LARGE",
}
_OVERFLOW_WORDS: Final = re.compile(
    r"(?i)prompt is too long|exceeds? (?:the )?(?:model'?s? )?context (?:limit|window)"
    r"|context (?:length|size|window) (?:exceeded|of)|maximum context length"
    r"|available context size"
)
_QUOTA_WORDS: Final = re.compile(r"(?i)credit balance is too low|usage limits?\b.{0,60}regain")
_LIMITS: Final = ("requests", "tokens", "input-tokens", "output-tokens")


def read_error(payload: Json) -> tuple[str, str] | None:
    """Return type and message of the error in a body or event; None when it is none.

    Forms: `{"type": "error", "error": {…}}`, and without the outer type from servers that imitate.
    """
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if not error and payload.get("type") == "error":
        error = payload
    if not error and "detail" in payload and "type" not in payload:
        error = payload["detail"]
    if not error:
        return None
    if not isinstance(error, dict):
        return "", str(error)
    return str(error.get("type") or ""), str(error.get("message") or "no message")


def event_failure(kind: str, message: str, origin: Origin) -> HarnessError:
    """Classify an error that came as an event of a stream whose HTTP status was 200.

    Its type stands for the status it would have had; what nobody knows is `Transient`.
    """
    return failure(_STATUS.get(kind, 500), kind, message, {}, origin)


def body_failure(
    status: int, body: bytes, headers: Mapping[str, str], origin: Origin
) -> HarnessError:
    """Classify an answer of an error status, JSON or not."""
    try:
        found = read_error(orjson.loads(body))
    except ValueError:
        found = None
    kind, message = found or ("", body[:4096].decode("utf-8", "replace") or "no message")
    return failure(status, kind, message, headers, origin)


def failure(
    status: int, kind: str, message: str, headers: Mapping[str, str], origin: Origin
) -> HarnessError:
    """Classify a refusal. `headers` must look names up without regard to case."""
    words = redact(message, origin.secret)
    told = f"{origin.provider} answered {status} for {origin.model}: {words}"
    detail: dict[str, Any] = {
        "status": status,
        "model": origin.model,
        "provider_request_id": headers.get("request-id"),
    }
    if code := _permanent_code(status, kind, message):
        return Permanent(told, code=code, **detail)
    now = datetime.now(UTC)
    wait = retry_after_s(as_x_headers(headers, now), now)
    retry = should_retry(headers)
    if retry is False and status not in {429, 529}:
        return Permanent(told, code="MODEL_NO_RETRY", **detail)
    if status in {429, 529} or (status == 503 and wait is not None):
        rate = rate_from(headers)
        if rate is not None and rate.used_up and rate.per_s is not None:
            detail["limit_per_s"] = rate.per_s
        return Limited(told, retry_after_s=wait, scope=origin.scope, **detail)
    if status >= 500 or status in {408, 409, 425} or retry:
        if wait is not None:
            detail["retry_after_s"] = wait
        return Transient(told, code="MODEL_UNAVAILABLE", **detail)
    return Permanent(told, code="MODEL_BAD_REQUEST", **detail)


def _permanent_code(status: int, kind: str, message: str) -> str | None:
    if kind == "billing_error" or (status < 500 and _QUOTA_WORDS.search(message)):
        return "INSUFFICIENT_QUOTA"
    if status in {400, 413, 422, 500} and _OVERFLOW_WORDS.search(message):
        return "CONTEXT_OVERFLOW"
    return _PERMANENT.get(status)


def rate_from(headers: Mapping[str, str]) -> Rate | None:
    """Return the provider's limit on requests; None when no header says it."""
    return rate_of(as_x_headers(headers, datetime.now(UTC)))


def as_x_headers(headers: Mapping[str, str], now: datetime) -> dict[str, str]:
    """Write `anthropic-ratelimit-*` headers in the form that `retry_after` reads.

    Their reset is a time (RFC 3339), read against the server's own `Date` so that clocks need not
    agree. Of the limits on tokens the one that is used up counts, and of several the latest.
    """
    out = {n: v for n in ("retry-after", "retry-after-ms", "date") if (v := headers.get(n))}
    since = _http_date(headers.get("date")) or now
    # The last that is written of a name stays: of those used up the one that takes longest.
    found = sorted(_limits(headers, since), key=lambda one: (one[2] == "0", one[3]))
    for what, limit, left, reset_s in found:
        name = "requests" if what == "requests" else "tokens"
        out[f"x-ratelimit-limit-{name}"] = limit
        out[f"x-ratelimit-remaining-{name}"] = left
        out[f"x-ratelimit-reset-{name}"] = f"{reset_s:.3f}"
    return out


def _limits(headers: Mapping[str, str], since: datetime) -> Iterator[tuple[str, str, str, float]]:
    for what in _LIMITS:
        name = f"anthropic-ratelimit-{what}"
        left, reset = headers.get(f"{name}-remaining"), _rfc3339(headers.get(f"{name}-reset"))
        if left is not None and reset is not None:
            wait_s = max(0.0, (reset - since).total_seconds())
            yield what, headers.get(f"{name}-limit", ""), left.strip(), wait_s


def _rfc3339(text: str | None) -> datetime | None:
    try:
        date = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _http_date(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError:
        return None
