"""Every process behind PgBouncer in transaction mode, where no session state holds."""

from __future__ import annotations

import time

import pytest

from tests.deploy.bouncer import PooledStack
from tests.e2e.test_kill import AGENT, audit, submit, wait_for_all

pytestmark = [pytest.mark.nightly, pytest.mark.e2e, pytest.mark.timeout(600)]


def test_runs_finish_behind_a_pooler_that_is_restarted():
    """INV1, INV2, INV5, INV10: a commit whose answer was cut off is read back."""
    with PooledStack(apis=2, schedulers=2, processes=2) as stack:
        with stack.client() as client:
            assert client.post("/v1/agents", json=AGENT).status_code == 201
        ids = submit(stack, 60)
        time.sleep(1.0)
        stack.bouncer.stop()
        time.sleep(1.0)
        stack.bouncer.start()
        deadline = time.monotonic() + 30
        while True:  # the APIs have it again
            with stack.client() as client:
                if client.get("/readyz").status_code == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ids += submit(stack, 60)
        wait_for_all(stack, ids, 180)
        audit(stack, ids)
        users = stack.query(
            "SELECT usename, count(*) AS n FROM pg_stat_activity "
            "WHERE usename IN ('harness_api', 'harness_system') GROUP BY 1"
        )
        # Three times as many would be open without it.
        assert all(row["n"] <= PooledStack.pool_size for row in users), users
