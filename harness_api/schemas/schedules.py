"""Schedules on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from harness_api.schemas.base import Input, InputTime, Output, Time
from harness_api.schemas.runs import RunAsked
from harness_common.contracts.agent import Name
from harness_common.core.schedule import (
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    At,
    CatchUp,
    Cron,
    Every,
    Overlap,
    When,
)
from harness_common.store.schedules import Definition

_DAY_S = 86_400
_ID_LIKE = "sched_"
_WINDOW_S = 60.0
_WINDOW_OF_AT_S = 86_400.0
_WAYS = ("cron", "every_s", "at")


def _no_id(name: str) -> str:
    if name.startswith(_ID_LIKE):
        raise ValueError(f"must not begin with {_ID_LIKE!r}, as ids do")
    return name


ScheduleName = Annotated[Name, AfterValidator(_no_id)]
OverlapName = Literal["skip", "enqueue", "cancel_previous", "allow"]
CatchUpName = Literal["none", "last", "all"]
Seconds = Annotated[float, Field(ge=0, le=366 * _DAY_S)]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class WhenInput(Input):
    """When it fires: exactly one of `cron`, `every_s` and `at`."""

    cron: (
        Annotated[
            str,
            Field(
                max_length=200,
                description="minute hour day-of-month month day-of-week, or @hourly, @daily, "
                "@weekly, @monthly, @yearly.",
                examples=["0 9 * * 1-5"],
            ),
        ]
        | None
    ) = None
    time_zone: (
        Annotated[
            str, Field(max_length=64, description="Of `cron`: an IANA name.", examples=["UTC"])
        ]
        | None
    ) = None
    every_s: Annotated[float, Field(ge=MIN_INTERVAL_S, le=MAX_INTERVAL_S)] | None = None
    anchor: InputTime | None = None
    """Of `every_s`: a time from which intervals are counted; by default when this was asked."""
    at: InputTime | None = None

    @model_validator(mode="after")
    def _one(self) -> WhenInput:
        given = [name for name in _WAYS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give exactly one of cron, every_s and at; found {found}")
        for name, owner in (("time_zone", "cron"), ("anchor", "every_s")):
            if getattr(self, name) is not None and given != [owner]:
                raise ValueError(f"{name} goes with {owner}, not with {given[0]}; remove it")
        return self

    def plain(self, now: datetime) -> When:
        """Return it as the core knows it."""
        if self.cron is not None:
            return Cron(self.cron, self.time_zone or "UTC")
        if self.every_s is not None:
            return Every(self.every_s, self.anchor or now)
        assert self.at is not None
        return At(self.at)


class ScheduleCreate(Input):
    """A schedule to make. `run` has the fields of a run to start; its `input` may hold
    `{scheduled_at}`, `{scheduled_date}` and `{schedule}`.
    """

    name: ScheduleName
    when: WhenInput
    run: RunAsked
    overlap: OverlapName = "skip"
    catch_up: CatchUpName = "last"
    window_s: (
        Annotated[
            Seconds,
            Field(description="How late `last` and `all` fire. Default: 60, and a day for `at`."),
        ]
        | None
    ) = None
    jitter_s: Annotated[float, Field(ge=0, le=_DAY_S)] = 0.0
    starts_at: InputTime | None = None
    ends_at: InputTime | None = None
    max_firings: Count | None = None
    paused: bool = False

    def definition(self, now: datetime) -> Definition:
        """Return the definition as the store knows it."""
        default_s = _WINDOW_OF_AT_S if self.when.at is not None else _WINDOW_S
        return Definition(
            self.when.plain(now),
            plain_run(self.run),
            Overlap(self.overlap),
            CatchUp(self.catch_up),
            default_s if self.window_s is None else self.window_s,
            self.jitter_s,
            self.starts_at,
            self.ends_at,
            self.max_firings,
        )


class SchedulePatch(Input):
    """What to change; a field that is not given stays. `run` and `when` are replaced whole, null
    takes `starts_at`, `ends_at` or `max_firings` away.
    """

    when: WhenInput | None = None
    run: RunAsked | None = None
    overlap: OverlapName | None = None
    catch_up: CatchUpName | None = None
    window_s: Seconds | None = None
    jitter_s: Annotated[float, Field(ge=0, le=_DAY_S)] | None = None
    starts_at: InputTime | None = None
    ends_at: InputTime | None = None
    max_firings: Count | None = None

    def changes(self, now: datetime) -> dict[str, Any]:
        """Return the fields of a definition that change."""
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("starts_at", "ends_at", "max_firings")
            if name in self.model_fields_set
        }
        given = {
            "when": self.when and self.when.plain(now),
            "run": self.run and plain_run(self.run),
            "overlap": self.overlap and Overlap(self.overlap),
            "catch_up": self.catch_up and CatchUp(self.catch_up),
            "window_s": self.window_s,
            "jitter_s": self.jitter_s,
        }
        return found | {name: value for name, value in given.items() if value is not None}


class SchedulePause(Input):
    """Why nothing shall fire."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class ScheduleTrigger(Input):
    """How to fire now."""

    overlap: OverlapName | None = None
    """Goes before the schedule's own."""


def plain_run(run: RunAsked) -> dict[str, Any]:
    """Return the fields of a run that were given."""
    run.check_together()
    empty = {"concurrency_max"} if run.concurrency_key is None else set[str]()
    if not run.skills:
        empty.add("skills")
    return run.model_dump(mode="json", exclude_none=True, exclude=empty)


class ScheduleLinks(Output):
    """Where to read on."""

    self: str
    firings: str
    runs: str


class ScheduleView(Output):
    """A schedule as it is now. `next` are its coming times, `next_at` the first with its jitter."""

    id: str
    name: str
    status: Literal["active", "paused", "ended"]
    when: dict[str, Any]
    run: dict[str, Any]
    overlap: OverlapName
    catch_up: CatchUpName
    window_s: float
    jitter_s: float
    starts_at: Time | None
    ends_at: Time | None
    max_firings: int | None
    firings: int
    waiting: int
    next_at: Time | None
    next: list[Time]
    paused_at: Time | None
    pause_reason: str | None
    created_at: Time
    created_by: str
    updated_at: Time
    links: ScheduleLinks


class FiringView(Output):
    """What became of one firing: the run that it started, or why it started none. A `missed` one
    may stand for all times up to `until`.
    """

    at: Time
    outcome: Literal["started", "waiting", "skipped", "missed", "failed"]
    run_id: str | None
    reason: str | None
    until: Time | None
    triggered_by: str | None
    created_at: Time
