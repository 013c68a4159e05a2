"""The statements of the store as EXPLAIN takes them."""

from __future__ import annotations

import re

from harness_common.store.postgres import sql


def numbered(name: str) -> str:
    """Return a statement with $1, $2 … for its parameters, for `EXPLAIN (GENERIC_PLAN)`."""
    numbers: dict[str, str] = {}
    return re.sub(
        r"%\((\w+)\)s",
        lambda m: numbers.setdefault(m[1], f"${len(numbers) + 1}"),
        sql(name).decode().replace("%%", "%"),
    )
