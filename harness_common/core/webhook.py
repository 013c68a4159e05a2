"""Webhooks as values: what is told, how it is signed (Standard Webhooks), when to try again."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final
from uuid import UUID

TEST: Final = "webhook.test"
_BACKOFF_S: Final = (5, 60, 300, 1_800, 7_200, 18_000, 36_000)
"""After each failed attempt; the first eight attempts take some 18 hours."""
MOST_FAILURES: Final = 5
"""Deliveries that failed for good in a row, after which a webhook is disabled."""


def secret_of(pepper: bytes, webhook_id: UUID, n: int) -> str:
    """Return the n-th signing secret of a webhook: made of the pepper, so that it is stored
    nowhere.
    """
    digest = hmac.new(pepper, b"webhook:" + webhook_id.bytes + n.to_bytes(4, "big"), hashlib.sha256)
    return "whsec_" + base64.b64encode(digest.digest()).decode()


def signature(secrets: Iterable[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each secret that is valid."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    keys = (base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets)
    return " ".join(
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in keys
    )


def again_in_s(attempt: int, asked_s: float | None, chance: float) -> float | None:
    """Return when to try after the `attempt`-th failure (1 for the first); None gives up.

    `asked_s` is a minimum (Retry-After), bounded to an hour; `chance` from 0 to 1 spreads.
    """
    if attempt > len(_BACKOFF_S):
        return None
    return max(_BACKOFF_S[attempt - 1] * (1 + 0.2 * chance), min(asked_s or 0.0, 3_600.0))
