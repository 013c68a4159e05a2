"""May this call be made? The answer to that question, and how it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Verdict(StrEnum):
    """What policy says of a call."""

    ALLOW = "allow"
    ASK = "ask"
    """A person decides; the run waits without a worker."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and everything that explains it."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    rule: str | None = None
    """The rule that decided; None for a built-in one."""
    policy_version: str = ""
    risk: Literal["low", "medium", "high"] = "low"
    approver_roles: tuple[str, ...] = ("approver", "admin")
    """Who may answer, when the verdict is to ask."""
    four_eyes: bool = False
    """Whether who started the run may not be who approves."""
    expires_s: float | None = None
    """How long a person has; None takes the tenant's default."""
