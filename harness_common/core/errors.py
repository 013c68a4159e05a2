"""The one error hierarchy: every failure that Harness names, with a stable `code`.

Everything raises these; `harness_api.errors` maps them to HTTP and `core.retry` maps them to a
decision. Nothing else classifies exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HarnessError(Exception):
    """Base of all named failures.

    `message` is for people and says what to do next; `detail` holds the field, value and limit as
    JSON.
    """

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, /, *, code: str | None = None, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code or self.code
        self.detail: Mapping[str, Any] = detail


class Invalid(HarnessError):
    """The caller's input can never be accepted as it is."""

    code = "INVALID"


class NotFound(Invalid):
    """Nothing of that id is visible to this tenant."""

    code = "NOT_FOUND"


class Conflict(HarnessError):
    """The thing changed, or is in a state that does not allow this: read again and decide."""

    code = "CONFLICT"


class IllegalTransition(Conflict):
    """The state machine has no such move."""

    code = "ILLEGAL_TRANSITION"


class LostOwnership(Conflict):
    """Another claim owns the run now; whatever this one did is discarded."""

    code = "LOST_OWNERSHIP"


class TermOver(Conflict):
    """Another scheduler leads now; whatever this one was about to write is not written (INV12)."""

    code = "TERM_OVER"


class Denied(HarnessError):
    """Authentication, role or policy forbids it."""

    code = "DENIED"


class Unauthenticated(Denied):
    """No key, or one that is unknown, revoked or expired."""

    code = "UNAUTHENTICATED"


class Limited(HarnessError):
    """Somebody said "not before": a provider's 429/529 or one of our own limits.

    `retry_after_s` is a minimum and is never shortened; None means that no time was given.
    `scope` names what is limited, for all who share it (provider, model, credential). `permit` is
    the run's own slot in a paced release (see `core.throttle`): then the time is exact.
    """

    code = "LIMITED"

    def __init__(
        self,
        message: str,
        /,
        *,
        retry_after_s: float | None = None,
        scope: str = "",
        permit: Mapping[str, Any] | None = None,
        code: str | None = None,
        **detail: Any,
    ) -> None:
        super().__init__(message, code=code, **detail)
        self.retry_after_s = retry_after_s
        self.scope = scope
        self.permit = permit


class Transient(HarnessError):
    """It may work when tried again: connection refused, 5xx, a cut stream, a timeout of a model."""

    code = "TRANSIENT"


class Permanent(HarnessError):
    """Trying again gives the same answer: refusal, bad credentials, quota used up, context too
    long.
    """

    code = "PERMANENT"


class NewerVersion(HarnessError):
    """What is stored was written by a newer version of Harness: a process of that version can go
    on, and this one leaves it alone.
    """

    code = "NEWER_VERSION"


class UnknownOutcome(HarnessError):
    """An effect was started and nobody can say whether it happened; a person decides."""

    code = "UNKNOWN_OUTCOME"
