"""The table of breakers, of tools and of models alike."""

from __future__ import annotations

from collections.abc import Sequence

from harness_api.cli.output import print_json, print_table, short
from harness_api.client.types import Breaker, ModelBreaker


def print_breakers(
    of: str, found: Sequence[tuple[str, Breaker | ModelBreaker]], *, as_json: bool
) -> None:
    """Print breakers with the names of what they stand before; `of` says what that is."""
    if as_json:
        print_json({"data": [breaker for _, breaker in found]})
        return
    print_table(
        (of, "state", "failures", "went well", "tried again", "opened", "times", "last fault"),
        [
            (
                name, b.state, b.failures, b.successes, b.until, b.opened_at, b.opens,
                short(b.reason, 60),
            )
            for name, b in found
        ],
        f"No {of} has failed lately.",
    )  # fmt: skip
