"""Circuit breakers: which tools fail now, for which tenant, so that nobody waits for them.

A breaker is closed while there is nothing to say of a tool: then a call costs one look into an
empty dict. Faults (timeouts, transient failures, exceptions; not refusals) are counted in Postgres,
where all processes share them. Enough of them open the breaker: calls are answered at once. When
its time is over one call tries the tool; it closes the breaker, or keeps it open for twice as long.
A process learns of an open breaker by its own faults, by broadcast and at the start; while
broadcasts cannot be heard, Postgres is asked instead, once a second at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import structlog

from harness_common.batch import Batcher
from harness_common.core.fallback import MODEL_PREFIX
from harness_common.core.message import Json
from harness_common.settings import ToolSettings
from harness_common.store.connection import DatabaseUnavailable, Row, run_together
from harness_common.store.db import Database
from harness_worker.telemetry import metrics

ASK_EVERY_S: Final = 1.0
"""How often Postgres is asked while broadcasts cannot be heard."""
SHARE: Final = 0.5
"""The part of the calls in a window that have to fail: a tool that mostly works stays in use."""
_PROBE_SLACK_S: Final = 5.0
"""How much longer than the tool's timeout a probe holds the others back when it never answers."""

log = structlog.get_logger()
Key = tuple[UUID, str]


class Broadcast(Protocol):
    """The channel that reaches every worker process."""

    def breaker(self, told: Json) -> Coroutine[Any, Any, bool]:
        """Tell all worker processes of a breaker; False when Redis did not take it."""
        ...


@dataclass(frozen=True, slots=True)
class Shut:
    """An open breaker: nobody calls the tool before `until`."""

    tool: str
    until: datetime
    failures: int
    reason: str
    updated_at: datetime
    probing: bool = False
    """A call tries the tool now: `until` is when that has to be over at the latest."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Permission for one call; a probe is the one call that tries a broken tool."""

    probe: UUID | None = None


GO: Final = Leave()


@dataclass(frozen=True, slots=True)
class _Fault:
    key: Key
    reason: str
    probe: UUID | None


@dataclass(slots=True)
class _Window:
    """What went well since the last fault of a tool that has failed lately."""

    since: float
    successes: int = 0


class Breakers:
    """The breakers of one process."""

    def __init__(
        self,
        db: Database,
        broadcast: Broadcast | None,
        clock: Callable[[], datetime],
        rule: ToolSettings,
    ) -> None:
        self._db, self._broadcast, self._clock, self._rule = db, broadcast, clock, rule
        self._open: dict[Key, Shut] = {}
        self._counting: dict[Key, _Window] = {}
        self._faults: Batcher[_Fault, Shut | None] = Batcher(self._count, largest=256, parallel=1)
        self._looked_at = -ASK_EVERY_S
        self._telling: set[asyncio.Task[bool]] = set()
        self.deaf = False
        """Broadcasts cannot be heard now."""

    @property
    def open(self) -> Mapping[Key, Shut]:
        """Which breakers are open, as far as this process knows."""
        return self._open

    async def leave(self, tenant_id: UUID, tool: str, timeout_s: float) -> Leave | Shut:
        """Say whether a call may be made now. The call tells `failed` or `worked` afterwards."""
        if self.deaf:
            await self._ask_postgres()
        key = (tenant_id, tool)
        shut = self._open.get(key)
        if shut is None:
            return GO
        if self._clock() < shut.until:
            return shut
        probe = uuid4()
        params = {
            "tenant_id": tenant_id,
            "tool": tool,
            "probe_id": probe,
            "hold_s": timeout_s + _PROBE_SLACK_S,
        }
        row = await self._db.fetch_one("breaker_probe", params)
        if row is None:
            self._open.pop(key, None)
            return GO
        self._take(row)
        return Leave(probe) if row["mine"] else _shut(row)

    async def failed(
        self, tenant_id: UUID, tool: str, reason: str, leave: Leave = GO
    ) -> Shut | None:
        """Count a fault of the tool; returns its breaker if this very fault opened it."""
        try:
            return await self._faults(_Fault((tenant_id, tool), reason[:300], leave.probe))
        except DatabaseUnavailable as error:
            log.warning("breaker.not_written", tool=tool, error=str(error))
            return None

    async def worked(self, tenant_id: UUID, tool: str, leave: Leave = GO) -> bool:
        """Note that the tool did its work; True if that closed its breaker."""
        key = (tenant_id, tool)
        if leave.probe is not None:
            return await self._close(key, leave.probe)
        window = self._counting.get(key)
        if window is not None:
            if time.monotonic() - window.since > self._rule.breaker_window_s:
                del self._counting[key]
            else:
                window.successes += 1
        return False

    def heard(self, told: Json) -> None:
        """Take a broadcast of another process (or our own, or the API's)."""
        try:
            key = (UUID(hex=told["tenant_id"]), str(told["tool"]))
            if told.get("until") is None:
                self._open.pop(key, None)
                self._counting.pop(key, None)
            else:
                times = {n: datetime.fromisoformat(told[n]) for n in ("until", "updated_at")}
                self._take({**told, **times, "tenant_id": key[0], "probe_until": None})
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("breaker.broadcast_unreadable")

    async def look(self) -> None:
        """Read the open breakers from Postgres. Raises `DatabaseUnavailable`."""
        self.refresh(await self._db.fetch("breakers_live", {}))

    def refresh(self, rows: Iterable[Row]) -> None:
        """Take all open breakers as Postgres has them; others have closed."""
        found = {(row["tenant_id"], row["tool"]): _shut(row) for row in rows}
        self._open.clear()
        self._open.update(found)

    async def _ask_postgres(self) -> None:
        if time.monotonic() - self._looked_at < ASK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        try:
            await self.look()
        except DatabaseUnavailable as error:
            log.warning("breaker.not_read", error=str(error))

    async def _close(self, key: Key, probe: UUID) -> bool:
        params = {"tenant_id": key[0], "tool": key[1], "probe_id": probe}
        try:
            rows = await self._db.fetch("breaker_close", params)
        except DatabaseUnavailable as error:
            log.warning("breaker.not_written", tool=key[1], error=str(error))
            return False
        self._open.pop(key, None)
        self._counting.pop(key, None)
        if rows:
            self._tell(key)
        return bool(rows)

    async def _count(self, faults: Sequence[_Fault]) -> list[Shut | None]:
        """Write the faults of a batch, one statement a tool, in one round trip."""
        groups: dict[Key, list[_Fault]] = {}
        for fault in faults:
            groups.setdefault(fault.key, []).append(fault)
        keys = sorted(groups)  # in one order: batches wait for each other, never deadlock
        statements = [("breaker_fail", self._fail_params(key, groups[key])) for key in keys]
        async with self._db.connection() as conn:
            answers = await run_together(conn, statements, self._db.timeout_s)
        opened: dict[Key, Shut] = {}
        for key, (row,) in zip(keys, answers, strict=True):
            if row["state"] != "open":
                self._open.pop(key, None)
                continue
            self._take(row)
            if row["opened"]:
                opened[key] = _shut(row)
                of = "model" if key[1].startswith(MODEL_PREFIX) else "tool"
                metrics.count(metrics.breakers_opened, of).inc()
                self._tell(key)
        return [opened.pop(fault.key, None) for fault in faults]

    def _fail_params(self, key: Key, faults: Sequence[_Fault]) -> dict[str, Any]:
        rule, now = self._rule, time.monotonic()
        before = self._counting.get(key)
        fresh = before is None or now - before.since > rule.breaker_window_s
        successes = 0 if before is None or fresh else before.successes
        self._counting[key] = _Window(now)
        return {
            "tenant_id": key[0],
            "tool": key[1],
            "failures": len(faults),
            "successes": successes,
            "probe_id": next((f.probe for f in faults if f.probe is not None), None),
            "reason": faults[-1].reason,
            "token": uuid4(),
            "limit": rule.breaker_failures,
            "share": SHARE,
            "window_s": rule.breaker_window_s,
            "open_s": rule.breaker_open_s,
            "open_max_s": rule.breaker_open_max_s,
        }

    def _take(self, row: Row) -> None:
        """Keep what is newer."""
        key, new = (row["tenant_id"], row["tool"]), _shut(row)
        old = self._open.get(key)
        if old is None or new.updated_at >= old.updated_at:
            self._open[key] = new

    def _tell(self, key: Key) -> None:
        """Tell the other processes, without waiting for Redis."""
        if self._broadcast is None:
            return
        shut = self._open.get(key)
        told: dict[str, Json] = {"tenant_id": key[0].hex, "tool": key[1]}
        if shut is not None:
            told |= {
                "until": shut.until.isoformat(),
                "failures": shut.failures,
                "reason": shut.reason,
                "updated_at": shut.updated_at.isoformat(),
            }
        task = asyncio.ensure_future(self._broadcast.breaker(told))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _shut(row: Row) -> Shut:
    """Read an open breaker; while a probe is under way it holds until that has to be over."""
    until, probe_until = row["until"], row["probe_until"]
    probing = probe_until is not None and probe_until > until
    held = probe_until if probing else until
    return Shut(row["tool"], held, row["failures"], row["reason"], row["updated_at"], probing)


def seconds_until(shut: Shut, now: datetime) -> float:
    """Return how long an open breaker still holds, at least 0."""
    return max(timedelta(0), shut.until - now).total_seconds()
