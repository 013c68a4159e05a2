"""One run whose workers are killed, and what has to be true of it afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from harness_common.commands import resolve_effect
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit, OwnerLost
from harness_common.core.run import Status
from harness_common.store.audit import Actor
from harness_common.store.effects import CallKey, Resolution
from tests.kill.points import Death, Point
from tests.store.play import Play
from tests.worker.tool_steps import asks

CLASSES = ("read", "idempotent", "write")
MAY_HAVE_HAPPENED = {Point.AFTER_INTENT, Point.DURING_EFFECT, Point.AFTER_EFFECT}
"""Between intent and record nobody can know whether a write took effect."""
KILLED = -9


class Workers:
    """The other end of `tests.kill.workers`: one worker at a time."""

    def __init__(self, url: str, effects: Path) -> None:
        self._url, self._effects = url, effects
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Workers:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.kill.workers", stdin=pipe, stdout=pipe
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def ring(self, play: Play, run_id: UUID, death: Death) -> int:
        """Let a worker answer the run's doorbell; returns how it ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        bell = {
            "url": self._url,
            "effects": str(self._effects),
            "tenant_id": str(play.tenant_id),
            "run_id": str(run_id),
            "version": (await play.read(run_id)).version,
            "point": death.point,
            "coin": death.coin,
        }
        process.stdin.write(json.dumps(bell).encode() + b"\n")
        async with asyncio.timeout(120):  # a slow machine is no failure, a worker that hangs is
            return int(await process.stdout.readline())


@dataclass
class Tally:
    """What all scenarios saw."""

    kills: Counter[tuple[str, Point]] = field(default_factory=Counter)
    unknown: int = 0
    run_again: int = 0
    effects: int = 0

    def told(self, calls: int) -> str:
        """Say it in words."""
        lines = [
            f"{sum(self.kills.values())} kills, {calls} calls, {self.effects} effects, "
            f"{self.unknown} unknown, of which {self.run_again} were run again"
        ]
        lines += [f"  {effect:10} {at:14} {n}" for (effect, at), n in sorted(self.kills.items())]
        return "\n".join(lines) + "\n"


@dataclass
class Scenario:
    """One call of an effect class, the deaths of its workers, and what became of it."""

    effect: str
    deaths: Sequence[Death]
    run_again: bool
    """Whether a person lets an unknown effect be run again."""

    async def play(self, play: Play, workers: Workers, tally: Tally) -> None:
        """Kill worker after worker, let one live, and check."""
        run_id = await play.start()
        await self._admit(play, run_id)
        await play.step(run_id, asks((self.effect, {"x": self.effect}), ("companion", {})))
        expects_unknown = False
        for death in [*self.deaths, Death()]:
            end = await workers.ring(play, run_id, death)
            if end == KILLED:
                assert death.point is not None
                tally.kills[self.effect, death.point] += 1
                assert await play.apply(await play.read(run_id), OwnerLost("w", "killed"))
                if self.effect == "write":
                    expects_unknown |= death.point in MAY_HAVE_HAPPENED
                continue
            assert end == 0, f"the worker failed at {death}"
            call = (await play.calls(run_id))[0]
            assert (call["status"] == "unknown") is expects_unknown, (self, call)
            if call["status"] != "unknown":
                break
            tally.unknown += 1
            if not self.run_again:
                break
            await self._say_run_again(play, run_id)
            expects_unknown = False
            tally.run_again += 1
        await self._check(play, run_id, expects_unknown=expects_unknown)

    async def _say_run_again(self, play: Play, run_id: UUID) -> None:
        said = Resolution("run_again", "a person", "the outside has no such effect")
        await resolve_effect(
            play.db, play.tenant_id, CallKey(run_id, 2, 0), said, actor=Actor("test")
        )
        await self._admit(play, run_id)

    async def _admit(self, play: Play, run_id: UUID) -> None:
        """Do the scheduler's part. A new run waits too, while one that is run again still does."""
        run = await play.read(run_id)
        if run.state.status is Status.QUEUED:
            assert await play.apply(run, Admit())

    async def _check(self, play: Play, run_id: UUID, *, expects_unknown: bool) -> None:
        calls, run = await play.calls(run_id), await play.read(run_id)
        if expects_unknown or calls[0]["status"] == "unknown":
            assert run.state.status is Status.WAITING_APPROVAL, self
        elif run.state.step == 2:
            assert [c["status"] for c in calls] == ["succeeded", "succeeded"], self
            assert [c["result"] for c in calls] == ["done", "slept"], self
            assert len((await play.messages(run_id))[-1].content) == 2
        await play.check_whole(run_id)


def effects_of(path: Path) -> dict[str, list[tuple[str, int]]]:
    """Read the outside file: by idempotency key, the class and attempt of each effect."""
    out: dict[str, list[tuple[str, int]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        effect, key, attempt = line.split()
        out.setdefault(key, []).append((effect, int(attempt)))
    return out


async def check_effects(play: Play, path: Path, runs: Sequence[dict[str, Any]]) -> int:
    """Compare the outside file with the ledger; returns how many effects there were."""
    seen = effects_of(path)
    for row in runs:
        key = f"{encode('run', row['run_id'])}.{row['step']}.{row['idx']}"
        found = seen.get(key, [])
        attempts = [attempt for _, attempt in found]
        if row["name"] == "write":
            assert len(found) <= row["authorised"], (key, found, row)
            assert len(set(attempts)) == len(attempts), "INV3: once per attempt"
        if row["status"] == "succeeded":
            assert found, f"{key} succeeded, and nothing happened"
        if row["name"] == "write" and row["status"] == "succeeded":
            assert attempts[-1] == row["attempt"]
    return sum(map(len, seen.values()))


def draw(seed: int, kills: int) -> list[Scenario]:
    """Draw scenarios that kill about so many workers: every class at every point, evenly."""
    dice, out = random.Random(seed), list[Scenario]()
    pairs = [(effect, point) for effect in CLASSES for point in Point]
    deaths = 0
    while deaths < kills:
        effect, point = pairs[len(out) % len(pairs)]
        row = [Death(point, dice.random() < 0.5)]
        if dice.random() < 0.4:
            row.append(Death(dice.choice(list(Point)), dice.random() < 0.5))
        out.append(Scenario(effect, row, dice.random() < 0.5))
        deaths += 1  # a second one is not always reached
    return out
