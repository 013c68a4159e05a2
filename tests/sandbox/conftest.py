"""A real jailer with real cages; nothing here is faked."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from harness_common.contracts.sandbox import SandboxTier
from harness_common.settings import SandboxSettings
from harness_worker.sandbox import kernel
from harness_worker.sandbox.service import WorkerSandbox

TIERS = [SandboxTier.A, SandboxTier.B]


def pytest_collection_modifyitems(items):
    if not kernel.SUPPORTED:
        why = pytest.mark.skip(reason=f"cages need Linux on x86-64, not {sys.platform}")
        for item in items:
            if "tests/sandbox" in str(item.path):
                item.add_marker(why)


@pytest.fixture(scope="session")
async def sandbox(anyio_backend) -> AsyncIterator[WorkerSandbox]:
    del anyio_backend
    made = WorkerSandbox(SandboxSettings(), modules=["tests.sandbox.caged_tools"])
    await made.link.start()
    yield made
    await made.stop()
