"""The lease: keeps two workers from doing the same work. Safety never rests on it.

Set if absent (or ours already) with a life time and the value `worker:claim_id`; renewed by the
heartbeat's side loop; deleted only by whoever's value it holds. Redis may be flushed at any moment:
the keys are set again. Calls made at the same moment share a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from redis.asyncio import Redis

from harness_common.batch import Batcher

_TAKE: Final = """
local held = redis.call('GET', KEYS[1])
if not held then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if not held or held == ARGV[1] then return 1 end
return 0
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_BREAK: Final = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, string.len(ARGV[1])) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
"""
_RENEW: Final = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if held then return 0 end
return -1
"""


def lease_key(prefix: str, run_id: UUID) -> str:
    """Name the key of a run's lease."""
    return f"{prefix}:lease:{run_id.hex}"


def worker_of(owner: bytes | str) -> UUID | None:
    """Read which worker process a lease's value names; None for what no worker wrote."""
    text = owner.decode(errors="replace") if isinstance(owner, bytes) else owner
    try:
        return UUID(hex=text.partition(":")[0])
    except ValueError:
        return None


class Leases:
    """Leases on runs, all with the same life time."""

    def __init__(self, redis: Redis, prefix: str, lease_s: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self._ms = int(lease_s * 1000)
        self._take = redis.register_script(_TAKE)
        self._release = redis.register_script(_RELEASE)
        self._break = redis.register_script(_BREAK)
        self._renew = redis.register_script(_RENEW)
        self._takes: Batcher[tuple[UUID, str], bool] = Batcher(self._take_all)
        self._releases: Batcher[tuple[UUID, str], bool] = Batcher(self._release_all)
        self._breaks: Batcher[tuple[UUID, UUID], bool] = Batcher(self._break_all)

    def key(self, run_id: UUID) -> str:
        """Name the key of a run's lease."""
        return lease_key(self._prefix, run_id)

    async def take(self, run_id: UUID, owner: str) -> bool:
        """Take the lease; False when another owner holds it. Safe to repeat."""
        return await self._takes((run_id, owner))

    async def release(self, run_id: UUID, owner: str) -> None:
        """Give the lease back if `owner` still holds it."""
        await self._releases((run_id, owner))

    async def _take_all(self, wanted: Sequence[tuple[UUID, str]]) -> list[bool]:
        if len(wanted) == 1:
            run_id, owner = wanted[0]
            return [bool(await self._take(keys=[self.key(run_id)], args=[owner, self._ms]))]
        pipe = self._redis.pipeline(transaction=False)
        for run_id, owner in wanted:
            await self._take(keys=[self.key(run_id)], args=[owner, self._ms], client=pipe)
        return [bool(answer) for answer in await pipe.execute()]

    async def _release_all(self, held: Sequence[tuple[UUID, str]]) -> list[bool]:
        if len(held) == 1:
            run_id, owner = held[0]
            return [bool(await self._release(keys=[self.key(run_id)], args=[owner]))]
        pipe = self._redis.pipeline(transaction=False)
        for run_id, owner in held:
            await self._release(keys=[self.key(run_id)], args=[owner], client=pipe)
        return [bool(answer) for answer in await pipe.execute()]

    async def holders(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return which worker process holds the lease of each of these runs, where one does."""
        if not run_ids:
            return {}
        owners = await self._redis.mget([self.key(run_id) for run_id in run_ids])
        return {
            run_id: worker
            for run_id, owner in zip(run_ids, owners, strict=True)
            if owner is not None and (worker := worker_of(owner)) is not None
        }

    async def break_lease(self, run_id: UUID, worker: UUID) -> None:
        """Delete the lease of a dead worker process, and only that."""
        await self._breaks((run_id, worker))

    async def _break_all(self, dead: Sequence[tuple[UUID, UUID]]) -> list[bool]:
        pipe = self._redis.pipeline(transaction=False)
        for run_id, worker in dead:
            await self._break(keys=[self.key(run_id)], args=[f"{worker.hex}:"], client=pipe)
        return [bool(answer) for answer in await pipe.execute()]

    async def renew(self, held: Iterable[tuple[UUID, str]]) -> tuple[list[UUID], list[UUID]]:
        """Extend leases in one round trip; return the runs whose lease another holds, and those
        whose lease vanished.

        A vanished lease is not set again here: it may have been released a moment ago. The caller
        knows.
        """
        pairs = list(held)
        if not pairs:
            return [], []
        pipe = self._redis.pipeline(transaction=False)
        for run_id, owner in pairs:
            await self._renew(keys=[self.key(run_id)], args=[owner, self._ms], client=pipe)
        answers: list[Any] = await pipe.execute()
        codes = dict(zip((run_id for run_id, _ in pairs), answers, strict=True))
        return (
            [run_id for run_id, code in codes.items() if code == 0],
            [run_id for run_id, code in codes.items() if code == -1],
        )


async def leases_left_s(
    redis: Redis, prefix: str, run_ids: Sequence[UUID]
) -> dict[UUID, float | None]:
    """Return for how many seconds the lease of each run still holds; None for one without."""
    pipe = redis.pipeline(transaction=False)
    for run_id in run_ids:
        pipe.pttl(lease_key(prefix, run_id))
    answers: list[int] = await pipe.execute() if run_ids else []
    return {r: ms / 1000 if ms >= 0 else None for r, ms in zip(run_ids, answers, strict=True)}
