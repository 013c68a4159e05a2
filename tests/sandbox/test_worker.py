"""A worker process has a sandbox from its start to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness_common.broker.app import app
from harness_common.broker.publish import Bell
from harness_common.contracts.sandbox import CageJob, SandboxTier
from harness_common.settings import Settings
from harness_common.store.tenants import list_workers
from harness_worker.heartbeat import beat
from harness_worker.runtime import close_runtime, open_runtime

pytestmark = pytest.mark.anyio


async def test_a_worker_brings_its_sandbox_and_takes_it_along(fresh_database_url, valkey, tmp_path):
    settings = Settings(database_url=fresh_database_url, redis_url=valkey.url, data_dir=tmp_path)
    runtime = await open_runtime(settings, Bell(app), "w")
    assert runtime.sandbox is not None
    try:
        result = await runtime.sandbox.run(CageJob("python", "print(42)"), SandboxTier.B)
        assert result.stdout == "42\n"
        found = runtime.sandbox.found
        assert found is not None, "it ran a job, so that its self-test has ended"
        await beat(runtime)
        (row,) = await list_workers(runtime.db)
        assert row["sandbox"] == {"tier": str(found.best), "why_not": dict(found.why_not)}
        jailer, folder = runtime.sandbox.link.pid, runtime.sandbox.link.folder
    finally:
        await close_runtime(runtime)
    assert not os.path.exists(f"/proc/{jailer}")
    assert not Path(str(folder)).exists()
    assert (tmp_path / "sandbox.json").exists()
