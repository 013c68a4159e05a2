"""When a schedule fires: cron in a time zone, an interval, or once. Pure: no clock is known here.

Called by `store.schedules` and `firing`, so by the API and the scheduler; a worker process never
imports it. Clock changes go as in Debian's cron (and CronSim, which reads the expressions): a time
of day that a clock change skips fires once, when the clock has jumped; one that comes twice fires
the first time. An expression whose minute or hour begins with `*` counts real time instead, and so
does an interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, Final, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from harness_common.core.errors import Invalid
from harness_common.core.message import Json

MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 366 * 86_400.0
ON_TIME_S: Final = 10.0
"""A firing at most so late is on time: a standby scheduler needs some seconds to take over."""
_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L, LW",
    "month": "1-12, JAN-DEC",
    "day-of-week": "0-7, SUN-SAT, 1#2, 1L",
}
_MOMENT: Final = timedelta(microseconds=1)


class CatchUp(StrEnum):
    """What happens to firings that came while no scheduler ran."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """What happens to a firing while an earlier run of its schedule is not over."""

    SKIP = "skip"
    ENQUEUE = "enqueue"
    CANCEL_PREVIOUS = "cancel_previous"
    ALLOW = "allow"


class Outcome(StrEnum):
    """What became of a firing."""

    STARTED = "started"
    WAITING = "waiting"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields (or a macro such as @daily), read in a time zone."""

    expression: str
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Every:
    """Every `interval_s` of real time, counted from (and back from) `anchor`."""

    interval_s: float
    anchor: datetime


@dataclass(frozen=True, slots=True)
class At:
    """Once."""

    time: datetime


When = Cron | Every | At


@dataclass(frozen=True, slots=True)
class Schedule:
    """When it fires, between which times, and by how much each firing may be put off.

    `seed` makes the jitter of one schedule differ from another's, the same in every process.
    """

    when: When
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_s: float = 0.0
    seed: str = ""


@dataclass(frozen=True, slots=True)
class Missed:
    """Times from `first` up to `until` came and will not fire."""

    first: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """What a look at a schedule gave: what fires now, oldest first, and what was missed before."""

    fire: tuple[datetime, ...] = ()
    missed: Missed | None = None


def when_from_json(found: Mapping[str, Any]) -> When:
    """Read what `when_to_json` wrote."""
    if "cron" in found:
        return Cron(found["cron"], found["time_zone"])
    if "every_s" in found:
        return Every(found["every_s"], datetime.fromisoformat(found["anchor"]))
    return At(datetime.fromisoformat(found["at"]))


def when_to_json(when: When) -> dict[str, Json]:
    """Write a `when` as it is stored and shown."""
    match when:
        case Cron():
            return {"cron": when.expression, "time_zone": when.time_zone}
        case Every():
            return {"every_s": when.interval_s, "anchor": when.anchor.isoformat()}
        case At():
            return {"at": when.time.isoformat()}
        case _:
            assert_never(when)


def check(when: When) -> None:
    """Raise `Invalid`, naming field, value and limit, for what can never be followed."""
    match when:
        case Cron():
            _zone(when.time_zone)
            _check_cron(when.expression)
        case Every() if not MIN_INTERVAL_S <= when.interval_s <= MAX_INTERVAL_S:
            raise Invalid(
                f"every_s is {when.interval_s:g}; it takes {MIN_INTERVAL_S:g} to "
                f"{MAX_INTERVAL_S:g} seconds",
                field="when.every_s",
                value=when.interval_s,
                limit=[MIN_INTERVAL_S, MAX_INTERVAL_S],
            )
        case Every() | At():
            pass
        case _:
            assert_never(when)


def next_after(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the first time after `after` (UTC, jitter left out); None when there is none."""
    if schedule.starts_at is not None:
        after = max(after, schedule.starts_at - _MOMENT)
    found: datetime | None
    match schedule.when:
        case Cron():
            found = _next_cron(schedule.when, after)
        case Every(interval_s, anchor):
            step = timedelta(seconds=interval_s)
            found = anchor + ((after - anchor) // step + 1) * step
        case At(time):
            found = time if time > after else None
        case _:
            assert_never(schedule.when)
    if found is None or (schedule.ends_at is not None and found > schedule.ends_at):
        return None
    return found.astimezone(UTC)


def coming(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield the times after `after`, in order."""
    at = next_after(schedule, after)
    while at is not None:
        yield at
        at = next_after(schedule, at)


def fires_at(schedule: Schedule, at: datetime) -> datetime:
    """Return when the firing of `at` really happens: put off by its jitter, and always before the
    next one's time, so that firings keep their order.
    """
    if schedule.jitter_s <= 0:
        return at
    most_s, following = schedule.jitter_s, next_after(schedule, at)
    if following is not None:
        most_s = min(most_s, (following - at).total_seconds())
    text = f"{schedule.seed}:{at.astimezone(UTC).isoformat()}"
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    return at + timedelta(seconds=most_s * drawn)


def due(
    schedule: Schedule,
    last: datetime,
    now: datetime,
    catch_up: CatchUp,
    window_s: float,
    most: int = 100,
) -> Due:
    """Decide about the times after `last` whose firing has come by `now`.

    With `none` the newest fires if it is on time, with `last` if it is at most `window_s` late,
    with `all` every one (up to `most`) that is at most `window_s` late. The others are missed.
    """
    first = next_after(schedule, last)
    if first is None or fires_at(schedule, first) > now:
        return Due()
    late = timedelta(seconds=ON_TIME_S if catch_up is CatchUp.NONE else window_s)
    newest = _newest(schedule, first, now)
    fire: tuple[datetime, ...]
    if catch_up is CatchUp.ALL:
        horizon = max(first, now - late - timedelta(seconds=schedule.jitter_s)) - _MOMENT
        ripe = takewhile(lambda at: at <= newest, coming(schedule, horizon))
        fire = tuple(islice((at for at in ripe if now - fires_at(schedule, at) <= late), most))
    else:
        fire = (newest,) if now - fires_at(schedule, newest) <= late else ()
    if not fire:
        return Due(missed=Missed(first, newest))
    return Due(fire, Missed(first, fire[0] - _MOMENT) if first < fire[0] else None)


def _newest(schedule: Schedule, first: datetime, now: datetime) -> datetime:
    """Return the last time whose firing has come by `now`, `first` or later: looked for ever
    further back, since a long outage may hold a million.
    """
    back = timedelta(seconds=120 + schedule.jitter_s)
    newest = first
    while True:
        after = max(first, now - back)
        for at in coming(schedule, after):
            if fires_at(schedule, at) > now:
                break
            newest = at
        if newest > first or after == first:
            return newest
        back *= 4


def _next_cron(cron: Cron, after: datetime) -> datetime | None:
    """Return the next time; CronSim may give the first of a repeated hour again, which is over."""
    times = CronSim(_expanded(cron.expression), _local(after, cron.time_zone))
    return next((utc for at in times if (utc := at.astimezone(UTC)) > after), None)


def _expanded(expression: str) -> str:
    return _MACROS.get(expression.strip().lower(), expression)


def _local(at: datetime, time_zone: str) -> datetime:
    return at.astimezone(UTC if time_zone == "UTC" else _zone(time_zone))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"time_zone {name[:64]!r} is not known; use an IANA name such as Europe/Berlin or UTC",
            field="when.time_zone",
            value=name[:64],
        ) from None


def _check_cron(expression: str) -> None:
    fields = _expanded(expression).split()
    if len(expression) > 200 or len(fields) != len(_FIELDS):
        macros = ", ".join(_MACROS)
        raise Invalid(
            f"cron {expression[:64]!r} has {len(fields)} fields; it takes 5 (minute hour "
            f"day-of-month month day-of-week, 200 characters at most) or one of {macros}. For "
            "seconds use every_s",
            field="when.cron",
            value=expression[:64],
            limit=5,
        )
    try:
        parsed = CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC))
        next(parsed)
    except CronSimError as error:
        raise _bad_field(fields, str(error).removeprefix("Bad ")) from None
    except StopIteration:
        raise Invalid(
            f"cron {expression!r} fits no day; change its day or month",
            field="when.cron",
            value=expression,
        ) from None


def _bad_field(fields: list[str], name: str) -> Invalid:
    value = dict(zip(_FIELDS, fields, strict=True)).get(name, "")
    return Invalid(
        f"cron: {name} is {value[:64]!r}; it takes {_FIELDS.get(name, '')}, and of these lists "
        "(1,2), ranges (1-5) and steps (*/10)",
        field="when.cron",
        value=value[:64],
        limit=_FIELDS.get(name),
    )
