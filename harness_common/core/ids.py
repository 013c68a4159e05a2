"""External ids: a prefix that says what the thing is, and a UUIDv7 in 32 hex digits.

`run_0199…` outside, `uuid` inside. Ids of stored things are minted from Postgres time (see
`store`).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from harness_common.core.errors import Invalid

PREFIXES: Final = {
    "tenant": "ten_",
    "api_key": "key_",
    "agent": "agent_",
    "session": "sess_",
    "run": "run_",
    "artifact": "art_",
    "approval": "appr_",
    "worker": "wrk_",
    "audit": "aud_",
    "schedule": "sched_",
    "mcp_server": "mcp_",
    "webhook": "hook_",
    "delivery": "msg_",
    "memory": "mem_",
    "skill": "skill_",
    "erasure": "ers_",
}
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def encode(kind: str, value: UUID) -> str:
    """Write `value` as the external id of a `kind`."""
    return PREFIXES[kind] + value.hex


def decode(kind: str, text: str) -> UUID:
    """Read an external id; raises `Invalid` that names the expected form."""
    prefix = PREFIXES[kind]
    digits = text.removeprefix(prefix)
    # UUID() and int() themselves let signs, spaces, underscores and other alphabets' digits
    # through.
    if not text.startswith(prefix) or len(digits) != 32 or not _HEX.issuperset(digits):
        raise Invalid(
            f"{text[:64]!r} is not a {kind} id; expected {prefix} and 32 hex digits",
            field=f"{kind}_id",
            value=text[:64],
        )
    return UUID(hex=digits)
