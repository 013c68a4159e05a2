"""What this process knows of throttled providers, and the way to a slot.

Asked by the model step before and after each call. While nothing is throttled a call costs one
look into an empty dict. Postgres holds the truth (Redis may be flushed at any time); this map
learns of a new throttle by its own refusals, by broadcast, by the heartbeat's answer and at the
start. While broadcasts cannot be heard, Postgres is asked instead, a few times a second at most.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import structlog

from harness_common.batch import Batcher
from harness_common.core import throttle as pace
from harness_common.core.errors import Limited
from harness_common.core.message import Json
from harness_common.core.retry import RetryRule, backoff_s
from harness_common.core.throttle import Leave, Permit, Rate, Throttle
from harness_common.store.connection import DatabaseUnavailable, Row, run_together
from harness_common.store.db import Database

NAP_S: Final = 0.05
"""A slot that is nearer than this is awaited in place: another doorbell would cost more."""
ASK_EVERY_S: Final = 0.2
"""How often Postgres is asked while broadcasts cannot be heard."""
_WORTH_TELLING_S: Final = 0.1
"""Many refusals of one moment lengthen the pause by a little each."""
_KEPT_S: Final = 2.0
"""A throttle that a snapshot does not show may be younger than the snapshot."""

log = structlog.get_logger()


class Broadcast(Protocol):
    """The channel that reaches every worker process."""

    def throttled(self, throttle: Json) -> Coroutine[Any, Any, bool]:
        """Tell all worker processes of a throttle; False when Redis did not take it."""
        ...


@dataclass(frozen=True, slots=True)
class _Hit:
    """A refusal to be written down."""

    wait_s: float
    called_at: datetime
    per_s: float | None
    code: str
    reason: str
    slowest_s: float = pace.MAX_INTERVAL_S
    counts: bool = True


@dataclass(frozen=True, slots=True)
class _Ask:
    """A slot to be had, and the refusal that made it needed, if any."""

    scope: str
    hit: _Hit | None = None
    wants_slot: bool = True


class Throttles:
    """The throttles of one process."""

    def __init__(
        self, db: Database, broadcast: Broadcast | None, clock: Callable[[], datetime]
    ) -> None:
        self._db = db
        self._broadcast = broadcast
        self._clock = clock
        self._live: dict[str, Throttle] = {}
        self._worked: dict[str, int] = {}
        self._dealt: dict[str, datetime] = {}
        """The last slot of each scope that this process was given."""
        self._asks: Batcher[_Ask, Permit | None] = Batcher(self._work, largest=512, parallel=1)
        self._looked_at = -ASK_EVERY_S
        self._telling: set[asyncio.Task[bool]] = set()
        self.deaf = False
        """Broadcasts cannot be heard now."""

    @property
    def live(self) -> Mapping[str, Throttle]:
        """What is throttled, as far as this process knows."""
        return self._live

    async def permit(self, scope: str, memo: Mapping[str, Json]) -> None:
        """Let a model call go now, or raise `Limited` with the slot that its run may use.

        `memo` is the run's: it holds the slot given out earlier, which is honoured unless the
        provider has refused again since (INV14). Raises `DatabaseUnavailable`.
        """
        if self.deaf:
            await self._ask_postgres()
        if scope not in self._live:
            return
        mine = Permit.from_memo(memo, scope)
        while (throttle := self._live.get(scope)) is not None:
            now = self._clock()
            leave = mine.judge(throttle, now) if mine is not None else Leave.VOID
            if leave is Leave.GO:
                return
            if mine is None or leave is Leave.VOID:
                mine = await self._asks(_Ask(scope))
                if mine is None or mine.hits != pace.NO_SLOT:
                    continue
            if leave is Leave.LATE:
                mine = mine.later(now, random.random())
            ahead_s = (mine.at - now).total_seconds()
            if ahead_s > NAP_S:
                words = f"{scope} is rate limited; this run waits for its turn"
                raise _limited(mine, ahead_s, words, code="THROTTLED")
            await asyncio.sleep(max(0.0, ahead_s))

    def wait_s(self, scope: str, memo: Mapping[str, Json]) -> float:
        """Return how long a call would have to wait, as far as this process knows.

        Asks for no slot: for whoever could call somebody else. A slot that the run holds counts.
        """
        throttle = self._live.get(scope)
        if throttle is None:
            return 0.0
        now = self._clock()
        mine = Permit.from_memo(memo, scope)
        if mine is not None and mine.judge(throttle, now) is not Leave.VOID:
            return max(0.0, (mine.at - now).total_seconds())
        next_at = max(throttle.until, self._dealt.get(scope, throttle.until))
        return max(0.0, (next_at - now).total_seconds())

    async def refused(
        self, error: Limited, called_at: datetime, times: int, *, wants_slot: bool = True
    ) -> Limited:
        """Note that the provider refused a call made at `called_at`; returns the error to raise.

        Everybody who shares its scope is told at once. `times` is how often the run was put off in
        a row, for providers that name no time. Without `wants_slot` the run means to ask somebody
        else.
        """
        if not error.scope:
            return error
        wait_s = error.retry_after_s
        if wait_s is None:
            wait_s = backoff_s(RetryRule(), times + 1, random.random())
        wait_s = max(pace.LEAST_PAUSE_S, wait_s)
        per_s = error.detail.get("limit_per_s")
        slowest_s = pace.slowest_s(error.retry_after_s)
        hit = _Hit(wait_s, called_at, per_s, error.error_code, error.message[:500], slowest_s)
        self._pause(error.scope, wait_s)
        try:
            mine = await self._asks(_Ask(error.scope, hit, wants_slot))
        except DatabaseUnavailable as fault:
            log.warning("throttle.not_written", scope=error.scope, error=str(fault))
            mine = None
        if mine is None:
            return Limited(
                error.message, retry_after_s=wait_s, scope=error.scope, code=error.error_code,
                **error.detail,
            )  # fmt: skip
        ahead_s = max(0.0, (mine.at - self._clock()).total_seconds())
        return _limited(mine, ahead_s, error.message, code=error.error_code, **error.detail)

    def worked(self, scope: str, rate: Rate | None) -> None:
        """Note that a call went well: the pace quickens, or begins before the first refusal."""
        if scope in self._live:
            self._worked[scope] = self._worked.get(scope, 0) + 1
        elif rate is not None and rate.used_up and rate.per_s is not None:
            now = self._clock()
            reason = f"the provider allows {rate.per_s:.3g} calls/s and none is left"
            hit = _Hit(pace.SLACK / rate.per_s, now, rate.per_s, "USED_UP", reason, counts=False)
            future = self._asks(_Ask(scope, hit, wants_slot=False))
            future.add_done_callback(_forget)

    def heard(self, told: Json) -> None:
        """Take a broadcast of another process (or our own)."""
        try:
            self._take(_throttle(from_json(told)))
        except (KeyError, TypeError, ValueError):
            log.warning("throttle.broadcast_unreadable")

    def refresh(self, rows: Iterable[Row], now: datetime) -> None:
        """Take all live throttles as Postgres has them at `now`; others have ended."""
        seen = set()
        for row in rows:
            seen.add(row["scope"])
            self._take(_throttle(row))
        for scope in self._live.keys() - seen:
            throttle = self._live[scope]
            kept = throttle.updated_at > now - timedelta(seconds=_KEPT_S)
            if throttle.until <= now and not kept:
                self._drop(scope)

    async def look(self) -> None:
        """Read the live throttles from Postgres. Raises `DatabaseUnavailable`."""
        rows = await self._db.fetch("throttles_live", {"ends_after_s": pace.ENDS_AFTER_S})
        self.refresh(rows, rows[0]["now"] if rows else self._clock())

    async def _ask_postgres(self) -> None:
        if time.monotonic() - self._looked_at < ASK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        await self.look()

    def _take(self, new: Throttle) -> None:
        """Keep what is newer; a pause is never shortened."""
        old = self._live.get(new.scope, new)
        newer = new if new.updated_at >= old.updated_at else old
        self._live[new.scope] = replace(newer, until=max(old.until, new.until))

    def _drop(self, scope: str) -> None:
        self._live.pop(scope, None)
        self._worked.pop(scope, None)
        self._dealt.pop(scope, None)

    def _pause(self, scope: str, wait_s: float) -> None:
        """Hold back this process and the others at once; Postgres then has the exact throttle."""
        now = self._clock()
        until = now + timedelta(seconds=wait_s)
        old = self._live.get(scope)
        if old is None:
            self._live[scope] = Throttle(scope, until, pace.START_INTERVAL_S, 0, now)
        elif until > old.until:
            self._live[scope] = replace(old, until=until)
        if old is None or until > old.until + timedelta(seconds=_WORTH_TELLING_S):
            self._tell(scope)

    async def _work(self, asks: Sequence[_Ask]) -> list[Permit | None]:
        """Write the refusals and fetch the slots of a batch: per scope one statement of each."""
        statements: list[tuple[str, dict[str, Any]]] = []
        worked = {}
        for scope in sorted({a.scope for a in asks}):  # in one order: batches wait, never deadlock
            mine = [a for a in asks if a.scope == scope]
            if hits := [a.hit for a in mine if a.hit is not None]:
                statements.append(("throttle_hit", _hit_params(scope, hits)))
            if n := sum(a.wants_slot for a in mine):
                worked[scope] = self._worked.pop(scope, 0)
                statements.append(("throttle_reserve", _slot_params(scope, n, worked[scope])))
        async with self._db.connection() as conn:
            answers = await run_together(conn, statements, self._db.timeout_s)
        slots: dict[str, Row] = {}
        for (name, params), rows in zip(statements, answers, strict=True):
            if not rows:
                self._ended(params["scope"])
                continue
            self._take(_throttle(rows[0]))
            if name == "throttle_hit":
                self._tell(params["scope"])
            else:
                slots[params["scope"]] = rows[0]
        permits = _permits(asks, slots, self._live)
        self._dealt |= {p.scope: p.at for p in permits if p is not None}
        return permits

    def _ended(self, scope: str) -> None:
        """Postgres knows no such throttle: forget it, unless it is our own and not written yet."""
        if (known := self._live.get(scope)) is not None and known.until <= self._clock():
            self._drop(scope)

    def _tell(self, scope: str) -> None:
        """Tell the other processes, without waiting for Redis."""
        if self._broadcast is None:
            return
        throttle = self._live[scope]
        told = {
            "scope": scope,
            "until": throttle.until.isoformat(),
            "interval_s": throttle.interval_s,
            "hits": throttle.hits,
            "updated_at": throttle.updated_at.isoformat(),
        }
        task = asyncio.ensure_future(self._broadcast.throttled(told))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _limited(mine: Permit, ahead_s: float, words: str, *, code: str, **detail: Any) -> Limited:
    return Limited(
        words, retry_after_s=ahead_s, scope=mine.scope, permit=mine.to_json(), code=code, **detail
    )


def _permits(
    asks: Sequence[_Ask], slots: Mapping[str, Row], live: Mapping[str, Throttle]
) -> list[Permit | None]:
    """Deal out the slots of a batch in the order asked."""
    given: dict[str, int] = {}
    out: list[Permit | None] = []
    for ask in asks:
        row, known = slots.get(ask.scope), live.get(ask.scope)
        if not ask.wants_slot:
            out.append(None)
        elif row is not None:
            number = given[ask.scope] = given.get(ask.scope, -1) + 1
            if number < row["dealt"]:
                at = pace.slot(row["first"], number, row["interval_s"], random.random())
                hits = row["hits"]
            else:
                at = pace.ask_again(max(row["until"], row["now"]), random.random())
                hits = pace.NO_SLOT
            out.append(Permit(ask.scope, max(at, known.until) if known else at, hits))
        else:  # a pause that only this process knows of; None when there is none
            out.append(Permit(ask.scope, known.until, known.hits) if known else None)
    return out


def _hit_params(scope: str, hits: Sequence[_Hit]) -> dict[str, Any]:
    """Make one hit of those of a batch: the longest pause, the latest call, a rate if any says
    one.
    """
    longest = max(hits, key=lambda h: (h.counts, h.wait_s))
    return {
        "scope": scope,
        "wait_s": longest.wait_s,
        "called_at": max(h.called_at for h in hits),
        "per_s": next((h.per_s for h in hits if h.per_s is not None), None),
        "code": longest.code,
        "reason": longest.reason,
        "hits": int(longest.counts),
        "start_s": pace.START_INTERVAL_S,
        "min_s": pace.MIN_INTERVAL_S,
        "max_s": longest.slowest_s,
        "slack": pace.SLACK,
        "slower": pace.SLOWER,
        "slower_known": pace.SLOWER_KNOWN,
    }


def _slot_params(scope: str, n: int, worked: int) -> dict[str, Any]:
    return {
        "scope": scope,
        "n": n,
        "horizon_s": pace.HORIZON_S,
        "worked": min(worked, 1000),
        "min_s": pace.MIN_INTERVAL_S,
        "slack": pace.SLACK,
        "faster": pace.FASTER,
    }


def from_json(row: Json) -> Row:
    """Read a throttle that travelled as JSON: its times are texts."""
    times = {name: datetime.fromisoformat(row[name]) for name in ("until", "updated_at")}
    return {**row, **times}


def _throttle(row: Row) -> Throttle:
    return Throttle(row["scope"], row["until"], row["interval_s"], row["hits"], row["updated_at"])


def _forget(future: asyncio.Future[Permit | None]) -> None:
    """Take note of a failure nobody awaits; the next refusal says the same again."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("throttle.not_written", error=repr(error))
