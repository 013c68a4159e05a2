"""Turn what an OpenAI-style server says when it refuses into one of our errors.

Used for HTTP answers and for error events in the middle of a stream. Knows the dialects of OpenAI,
vLLM, llama.cpp and `transformers serve`. The only place of this provider family that classifies;
nothing is retried here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Json
from harness_worker.models.redact import redact
from harness_worker.models.retry_after import rate_of, retry_after_s, should_retry

_QUOTA: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
)
_OVERFLOW: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_REFUSED: Final = frozenset(
    {
        "bio_policy", "content_filter", "content_policy_violation",
        "image_content_policy_violation", "misalignment_policy_violation",
    }
)  # fmt: skip
_REASONING: Final = frozenset({"invalid_encrypted_content"})
REASONING_REFUSED: Final = "REASONING_REFUSED"
"""The code of an error that says that the server cannot read reasoning which it wrote itself."""
_OVERFLOW_WORDS: Final = re.compile(
    r"(?i)maximum context length|context (?:length|window|size)|maximum model length"
    r"|max_model_len|prompt is too long"
)
_OVERFLOW_STATUS: Final = frozenset({400, 413, 422, 500})
_TRANSIENT_STATUS: Final = frozenset({408, 409, 425})
_PERMANENT_CODES: Final = {401: "MODEL_AUTH", 403: "MODEL_AUTH", 404: "MODEL_NOT_FOUND"}
_STATUS_BY_KIND: Final = (
    ("rate_limit", 429),
    ("ratelimit", 429),
    ("overloaded", 529),
    ("authentication", 401),
    ("invalid_request", 400),
    ("badrequest", 400),
    ("exceed_context", 400),
    ("context_length", 400),
    ("notfound", 404),
    ("not_found", 404),
    ("invalid_", 400),
    ("data_residency", 400),
    ("image", 400),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The endpoint that is asked; `scope` names what a limit applies to, for everybody who shares
    it.
    """

    provider: str
    model: str
    secret: str = ""

    @property
    def scope(self) -> str:
        """Return `provider:model:fingerprint of the credential`; the credential cannot be read
        back.
        """
        digest = hashlib.sha256(self.secret.encode()).hexdigest()[:12] if self.secret else "none"
        return f"{self.provider}:{self.model}:{digest}"


class ServerError(NamedTuple):
    """What the server said. `kinds` holds its `code` and `type` in lower case; `status` only if the
    body has one.
    """

    message: str
    kinds: tuple[str, ...] = ()
    status: int | None = None


def read_error(payload: Json) -> ServerError | None:
    """Find the error in a JSON body or stream event; None when there is none.

    Forms: `{"error": {...}}` (OpenAI, llama.cpp), `{"error": "text"}`, `{"object": "error", ...}`
    (vLLM), `{"detail": ...}` (FastAPI, `transformers serve`) and a list around any of them.
    """
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if not error and payload.get("object") == "error":
        error = payload
    if not error and "choices" not in payload:
        error = payload.get("detail")
    if not error:
        return None
    if not isinstance(error, dict):
        return ServerError(error if isinstance(error, str) else str(error))
    code, kind = error.get("code"), error.get("type")
    numbers = [c for c in (code, error.get("status")) if isinstance(c, int) and 400 <= c < 600]
    return ServerError(
        str(error.get("message") or error.get("detail") or "no message"),
        tuple(k.lower() for k in (code, kind) if isinstance(k, str)),
        numbers[0] if numbers else None,
    )


def read_chat_error(event: Json) -> ServerError | None:
    """Find the error in a chunk of Chat Completions; quick for the many that have none."""
    if isinstance(event, dict) and "choices" in event and "error" not in event:
        return None
    return read_error(event)


def read_body(body: bytes) -> ServerError:
    """Read the body of an error answer, JSON or not."""
    try:
        error = read_error(orjson.loads(body))
    except ValueError:
        error = None
    return error or ServerError(body[:4096].decode("utf-8", "replace") or "no message")


def event_failure(error: ServerError, origin: Origin) -> HarnessError:
    """Classify an error that came as an event of a stream whose HTTP status was 200.

    Without a status of its own the error's type decides; what nobody knows is `Transient`.
    """
    status = error.status
    if status is None:
        kinds = " ".join(error.kinds)
        status = next((s for word, s in _STATUS_BY_KIND if word in kinds), 500)
    return failure(status, error, {}, origin)


def failure(
    status: int, error: ServerError, headers: Mapping[str, str], origin: Origin
) -> HarnessError:
    """Classify a refusal. `headers` must look names up without regard to case.

    Returned, not raised, so that the caller raises without a chain.
    """
    words = redact(error.message, origin.secret)
    message = f"{origin.provider} answered {status} for {origin.model}: {words}"
    detail: dict[str, Any] = {
        "status": status,
        "model": origin.model,
        "provider_request_id": headers.get("x-request-id"),
    }
    if code := _permanent_code(status, error):
        return Permanent(message, code=code, **detail)
    retry = should_retry(headers)
    wait = retry_after_s(headers, datetime.now(UTC))
    if retry is False:
        return Permanent(message, code="MODEL_NO_RETRY", **detail)
    if status in {429, 529} or (status == 503 and wait is not None):
        rate = rate_of(headers)
        if rate is not None and rate.used_up and rate.per_s is not None:
            detail["limit_per_s"] = rate.per_s
        return Limited(message, retry_after_s=wait, scope=origin.scope, **detail)
    if status >= 500 or status in _TRANSIENT_STATUS or retry:
        if wait is not None:
            detail["retry_after_s"] = wait
        return Transient(message, code="MODEL_UNAVAILABLE", **detail)
    return Permanent(message, code=_PERMANENT_CODES.get(status, "MODEL_BAD_REQUEST"), **detail)


def _permanent_code(status: int, error: ServerError) -> str | None:
    """Name the refusals that stay the same whatever the status and headers say."""
    kinds = frozenset(error.kinds)
    if kinds & _QUOTA or status == 402:
        return "INSUFFICIENT_QUOTA"
    if kinds & _OVERFLOW:
        return "CONTEXT_OVERFLOW"
    if status in _OVERFLOW_STATUS and _OVERFLOW_WORDS.search(error.message):
        return "CONTEXT_OVERFLOW"
    if kinds & _REFUSED:
        return "MODEL_REFUSED"
    if kinds & _REASONING:
        return REASONING_REFUSED
    if status == 429 and error.message.startswith("Request too large"):
        return (
            "REQUEST_TOO_LARGE"  # OpenAI: one request above the whole per-minute limit never fits
        )
    return None
