"""A worker process without one of its background loops must not go on looking alive."""

from __future__ import annotations

import asyncio
import os

import pytest

from harness_common.broker.app import app
from harness_worker.tasks import Process
from tests.worker.runtime import make_runtime


async def ends() -> None:
    await asyncio.sleep(0)


async def breaks() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("broken")


@pytest.mark.parametrize("loop", [ends, breaks])
@pytest.mark.parametrize("stopping", [False, True])
async def test_the_end_of_a_loop_ends_the_process_unless_it_stops(db, monkeypatch, loop, stopping):
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    process = Process(app, "w")
    process.runtime = await make_runtime(db)
    process.runtime.stopping = stopping
    await asyncio.wait([process.keep(loop())])
    await asyncio.sleep(0)
    assert left == ([] if stopping else [70])
