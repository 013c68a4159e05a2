"""The queues of a Redis behind Sentinel. Flower's own reading of them asks a single Sentinel, and
cannot take an address that names several.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from flower.utils.broker import RedisBase

from harness_common.coord.redis import connect
from harness_common.settings import RedisSettings

_NOWHERE: Final = "sentinel://"
"""What Flower would read an address from; ours knows where to ask."""


class SentinelBroker(RedisBase):
    """Asks whichever server the Sentinels call the primary."""

    def __init__(self, url: str, config: RedisSettings, options: Mapping[str, Any]) -> None:
        super().__init__(_NOWHERE, broker_options=options)
        self.redis = _client(url, config.timeout_s, config.prefix)


@cache
def _client(url: str, timeout_s: float, prefix: str) -> Any:  # noqa: ANN401 - Flower's are untyped
    """Build the one client of the process, which connects anew after each page."""
    return connect(url, RedisSettings(timeout_s=timeout_s, prefix=prefix), name="harness-flower")
