"""Runs that go on without a worker process."""

from __future__ import annotations

import pytest

from harness_common.store.db import Database
from tests.fakes.tenant import Tenant
from tests.store.play import Play


@pytest.fixture
def play(db: Database, tenant: Tenant) -> Play:
    """Play the worker of the first tenant's runs."""
    return Play(db, tenant.id)
