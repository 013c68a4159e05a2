"""The lease: keeps two workers from doing the same work. Safety never rests on it (see `store.claim`).

`SET key worker:claim_id NX PX`, renewed by the heartbeat, deleted only by whoever's value it holds. Redis may be flushed at any
moment; the next heartbeat sets the key again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from redis.asyncio import Redis

_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_BREAK: Final = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, string.len(ARGV[1])) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_RENEW: Final = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] or not held then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1
end
return 0
"""


class Leases:
    """Leases on runs, all with the same life time."""

    def __init__(self, redis: Redis, prefix: str, lease_s: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self._ms = int(lease_s * 1000)
        self._release = redis.register_script(_RELEASE)
        self._break = redis.register_script(_BREAK)
        self._renew = redis.register_script(_RENEW)

    def key(self, run_id: UUID) -> str:
        """Name the key of a run's lease."""
        return f"{self._prefix}:lease:{run_id.hex}"

    async def take(self, run_id: UUID, owner: str) -> bool:
        """Take the lease; False when another owner holds it."""
        return bool(await self._redis.set(self.key(run_id), owner, nx=True, px=self._ms))

    async def release(self, run_id: UUID, owner: str) -> None:
        """Give the lease back if `owner` still holds it."""
        await self._release(keys=[self.key(run_id)], args=[owner])

    async def break_lease(self, run_id: UUID, worker: UUID) -> None:
        """Delete the lease of a dead worker process, and only that."""
        await self._break(keys=[self.key(run_id)], args=[f"{worker.hex}:"])

    async def renew(self, held: Iterable[tuple[UUID, str]]) -> list[UUID]:
        """Extend leases in one round trip, setting those that vanished; return those that others hold."""
        pairs = list(held)
        if not pairs:
            return []
        pipe = self._redis.pipeline(transaction=False)
        for run_id, owner in pairs:
            await self._renew(keys=[self.key(run_id)], args=[owner, self._ms], client=pipe)
        answers = await pipe.execute()
        return [run_id for (run_id, _), ok in zip(pairs, answers, strict=True) if not ok]
