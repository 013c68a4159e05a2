"""An approval as a value: what it is bound to, and what the model is told when there is none.

The rules for a run that waits for one are in `core.approval_rules`.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Final

from harness_common.core.message import Json


class ApprovalStatus(StrEnum):
    """Where an approval stands. Only `pending` can be decided, only `approved` can be used."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    """Its run ended before it was used."""
    VOID = "void"
    """What was shown no longer holds (the tool, the policy or the arguments changed): the call was
    asked about anew, or ended without it.
    """
    USED = "used"


DENIED: Final = "APPROVAL_DENIED"
EXPIRED: Final = "APPROVAL_EXPIRED"


def digest(tool: str, arguments: Json) -> str:
    """Name a call's arguments: SHA-256 over canonical JSON.

    Keys are sorted, and a whole number is the same written 1, 1.0 or 1e0, since a database may
    write it otherwise than a model did.
    """
    text = json.dumps(
        [tool, _canonical(arguments)],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def told_denied(tool: str, reason: str) -> str:
    """Word a denial for the model."""
    return (
        f"Tool {tool} was not run ({DENIED}): a person decided against it: {reason}\n"
        "Do not ask for the same again; find another way or say what is missing."
    )


def told_expired(tool: str) -> str:
    """Word an approval that nobody gave in time for the model."""
    return (
        f"Tool {tool} was not run ({EXPIRED}): it needs a person's approval, and nobody decided in "
        "time.\nReconsider the call before trying again."
    )


def told_edited(arguments: Json) -> str:
    """Tell the model that a person changed its arguments; stands before the result."""
    return f"[a person changed the arguments to {json.dumps(arguments, ensure_ascii=False)}]\n"
