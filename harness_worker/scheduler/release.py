"""Runs that are held back from admission: those of a concurrency key beyond its bound, and those
behind an unfinished run of their session. This loop lets them go; admission does the rest.

What was let go counts against its key until it ends or waits again, so that no more than the bound
ever run. A tick looks at a bounded number, going round.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from harness_worker.scheduler.looper import HELD_S, Look, Shared

_NOBODY: Final = UUID(int=0)
_KEYS: Final = 200
_RUNS: Final = 500


class ReleaseLoop:
    """Lets held runs go."""

    name = "release"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._after_key: tuple[UUID, str] = (_NOBODY, "")
        self._after_prev: tuple[UUID, UUID] = (_NOBODY, _NOBODY)

    async def run_once(self, look: Look) -> int:
        """Look at the next of each kind that waits."""
        done = 0
        if look.behind:
            done += await self._sessions()
        if look.keyed or done:
            done += await self._keys()
        self._shared.count("runs_released", done)
        return done

    async def _keys(self) -> int:
        tenant_id, key = self._after_key
        row = await self._write(
            "release_keys", {"tenant_id": tenant_id, "key": key, "keys": _KEYS, "most": _RUNS}
        )
        whole = self._whole(row["looked_at"] < _KEYS)
        self._after_key = (_NOBODY, "") if whole else (row["tenant_id"], row["concurrency_key"])
        return int(row["released"])

    async def _sessions(self) -> int:
        tenant_id, prev = self._after_prev
        row = await self._write(
            "release_sessions", {"tenant_id": tenant_id, "prev": prev, "most": _RUNS}
        )
        whole = self._whole(row["looked_at"] < _RUNS)
        self._after_prev = (_NOBODY, _NOBODY) if whole else (row["tenant_id"], row["prev_run_id"])
        return int(row["released"])

    def _whole(self, whole: bool) -> bool:
        """Ask for the next tick soon while there are more to look at; return `whole`."""
        if not whole:
            self._shared.ask_again(self._shared.settings.scheduler.tick_s)
        return whole

    async def _write(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        shared = self._shared
        async with shared.db.transaction(HELD_S) as conn:
            return (await shared.led(conn, name, params))[0]
