"""The one place that says what a failure of a tool is: whose fault, whether to try again, and how
the model is told of it.
"""

from __future__ import annotations

from typing import Final

from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.errors import (
    HarnessError,
    Invalid,
    Limited,
    Transient,
    UnknownOutcome,
)
from harness_common.core.policy import Decision
from harness_common.core.tool_call import CallStatus
from harness_common.store.json_codec import storable_text
from harness_worker.models.redact import blot
from harness_worker.tools.caged import Broken
from harness_worker.tools.call import Ended

PERMISSION_DENIED: Final = "PERMISSION_DENIED"
_MAX_CHARS = 2_000


def failed(name: str, error_type: str, cause: str, status: CallStatus = CallStatus.FAILED) -> Ended:
    """Word a failure for the model: which tool, what kind, why, and to think again."""
    cause = redacted(cause)
    text = f"Tool {name} failed ({error_type}): {cause}\nReconsider the call before trying again."
    return Ended(status, storable_text(text), error_type, why=storable_text(cause)[:500])


def redacted(text: str) -> str:
    """Blot out whatever looks like a credential: a tool's own words may carry one."""
    return blot(text)


def refused(name: str, error: HarnessError, said: str | None = None) -> Ended:
    """Word what somebody said no to: the arguments, the policy, the tool itself. `said` is what it
    says, without secrets.
    """
    kind = "TRANSIENT" if isinstance(error, Transient) else error.error_code
    status = CallStatus.REJECTED if isinstance(error, Invalid) else CallStatus.FAILED
    return failed(name, kind, error.message if said is None else said, status)


def denied(name: str, decision: Decision) -> Ended:
    """Word a no of policy."""
    why = "; ".join(decision.reasons) or "policy does not allow it"
    return failed(name, PERMISSION_DENIED, f"E403: {why}", CallStatus.REJECTED)


def classify(spec: ToolSpec, error: Exception, said: str) -> Ended:
    """Turn what an attempt raised into how it ended; `said` is what it says, without secrets.

    Timeouts, transient failures and exceptions that nobody named are faults of the tool and count
    against its breaker; of these the first two may be tried again. A refusal is an answer. A
    `write` that ended in a way that nobody named is unknown: its effect may have come first.
    """
    match error:
        case TimeoutError():
            cause = said or "the tool timed out"
            return _fault(failed(spec.name, "TIMEOUT", cause, _unnamed(spec)), retry=True)
        case UnknownOutcome():
            ended = failed(spec.name, error.error_code, said, CallStatus.UNKNOWN)
            return _fault(ended, retry=False)
        case Transient():
            return _fault(
                refused(spec.name, error, said),
                retry=True,
                after_s=error.detail.get("retry_after_s"),
            )
        case Broken():
            return _fault(refused(spec.name, error, said), retry=False)
        case Limited():
            return _retry(refused(spec.name, error, said), error.retry_after_s)
        case HarnessError():
            return refused(spec.name, error, said)
        case _:
            kind, cause = type(error).__name__, said[:_MAX_CHARS]
            return _fault(failed(spec.name, kind, cause, _unnamed(spec)), retry=False)


def _unnamed(spec: ToolSpec) -> CallStatus:
    return CallStatus.UNKNOWN if spec.effect is EffectClass.WRITE else CallStatus.FAILED


def _fault(ended: Ended, *, retry: bool, after_s: float | None = None) -> Ended:
    return ended.changed(fault=True, retry=retry, retry_after_s=after_s)


def _retry(ended: Ended, after_s: float | None) -> Ended:
    """Try again only if it was said when."""
    return ended.changed(retry=after_s is not None, retry_after_s=after_s)
