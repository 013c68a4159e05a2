"""Schedules: make, change, pause, fire by hand, and what became of their firings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any

from harness_api.client.http import Call, given
from harness_api.client.paths import name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Firing, Schedule

_PATH = "/v1/schedules/{}"


def _text(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


class Schedules(Resource[M]):
    """`client.schedules`; wherever a schedule is named, its name or its id will do."""

    @operation
    async def create(  # noqa: PLR0913 - the fields of a request
        self,
        name: str,
        agent: str,
        input: str,
        *,
        cron: str | None = None,
        time_zone: str | None = None,
        every_s: float | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        overlap: str | None = None,
        catch_up: str | None = None,
        window_s: float | None = None,
        jitter_s: float | None = None,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        max_firings: int | None = None,
        paused: bool | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Make a schedule: exactly one of `cron`, `every_s` and `at` says when.

        `run` has further fields of the runs it starts: `tags`, `priority`, `session_id`, limits.
        """
        when = given(
            cron=cron, time_zone=time_zone, every_s=every_s, anchor=_text(anchor), at=_text(at)
        )
        body = given(
            name=name,
            when=when,
            run={**(run or {}), "agent": agent, "input": input},
            overlap=overlap,
            catch_up=catch_up,
            window_s=window_s,
            jitter_s=jitter_s,
            starts_at=_text(starts_at),
            ends_at=_text(ends_at),
            max_firings=max_firings,
            paused=paused,
        )
        return await self._http.fetch(Call("POST", "/v1/schedules", body=body), Schedule)

    @operation
    async def update(self, schedule: str, changes: Mapping[str, Any]) -> Schedule:
        """Change fields of a schedule, as `PATCH /v1/schedules` takes them; the others stay."""
        call = Call("PATCH", name_path(_PATH, schedule), body=dict(changes), repeatable=True)
        return await self._http.fetch(call, Schedule)

    @operation
    async def get(self, schedule: str) -> Schedule:
        """Read a schedule."""
        return await self._http.fetch(Call("GET", name_path(_PATH, schedule)), Schedule)

    @flow
    async def list(self, limit: int | None = None) -> AsyncGenerator[Schedule, None]:
        """Yield schedules, newest first."""
        async for schedule in self._http.pages("/v1/schedules", Schedule, limit):
            yield schedule

    @operation
    async def pause(self, schedule: str, reason: str = "") -> Schedule:
        """Let nothing fire until it is resumed. Safe to repeat."""
        path = name_path(_PATH + "/pause", schedule)
        call = Call("POST", path, body={"reason": reason}, repeatable=True)
        return await self._http.fetch(call, Schedule)

    @operation
    async def resume(self, schedule: str) -> Schedule:
        """Let it fire again from now on. Safe to repeat."""
        path = name_path(_PATH + "/resume", schedule)
        return await self._http.fetch(Call("POST", path, repeatable=True), Schedule)

    @operation
    async def trigger(self, schedule: str, *, overlap: str | None = None) -> Firing:
        """Fire now; `overlap` goes before the schedule's own. Look at `outcome` and `run_id`."""
        path = name_path(_PATH + "/trigger", schedule)
        return await self._http.fetch(Call("POST", path, body=given(overlap=overlap)), Firing)

    @operation
    async def delete(self, schedule: str) -> None:
        """Remove a schedule; its runs stay."""
        await self._http.send(Call("DELETE", name_path(_PATH, schedule)))

    @flow
    async def firings(
        self, schedule: str, limit: int | None = None
    ) -> AsyncGenerator[Firing, None]:
        """Yield what became of its firings, newest first."""
        path = name_path(_PATH + "/firings", schedule)
        async for firing in self._http.pages(path, Firing, limit):
            yield firing
