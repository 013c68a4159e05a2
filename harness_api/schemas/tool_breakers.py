"""Circuit breakers of tools on the wire."""

from __future__ import annotations

from typing import Literal

from harness_api.schemas.base import Output, Time


class BreakerFacts(Output):
    """What is known of what failed lately."""

    state: Literal["open", "half_open", "closed"]
    """`open`: not called; `half_open`: one call tries it now; `closed`: called, faults counted."""
    failures: int
    """Faults within the window."""
    successes: int
    """Calls that went well meanwhile, as far as counted."""
    opens: int
    """How often in a row it was opened: each time for twice as long."""
    reason: str
    """The last fault."""
    opened_at: Time | None
    until: Time | None
    """When one call tries the tool again."""
    updated_at: Time


class BreakerView(BreakerFacts):
    """What is known of a tool that failed lately."""

    tool: str
