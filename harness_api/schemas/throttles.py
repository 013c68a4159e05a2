"""Throttles on the wire."""

from __future__ import annotations

from harness_api.schemas.base import Output, Time


class ThrottleView(Output):
    """A provider's limit that holds everybody back who shares its scope."""

    scope: str
    provider: str
    model: str
    credential: str
    """A fingerprint: the credential cannot be read back."""
    until: Time
    """Nobody calls before."""
    next_at: Time
    """The first slot that no run has yet."""
    interval_s: float
    """Between two calls, over all processes."""
    limit_per_s: float | None
    """What the provider allows, where it says so."""
    code: str
    reason: str
    hits: int
    """Refusals that came in spite of the pace known then."""
    since: Time
    updated_at: Time
    waiting: int
    """Delayed runs of the tenant that have a slot."""
