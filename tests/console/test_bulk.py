"""Many runs at once: a look first, then batches, and nothing twice."""

from __future__ import annotations

import re

import httpx
import pytest

from harness_api.console.pages import bulk
from harness_common.core.ids import encode
from harness_common.store.db import Database
from tests.console.conftest import LogIn, send
from tests.fakes.tenant import Tenant
from tests.store.play import Play, sql


def _hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, page
    return found[1]


async def _all_the_way(visitor: httpx.AsyncClient, page: str) -> str:
    """Send the form of each answer until none is left."""
    for _ in range(50):
        if 'action="/console/runs/bulk/go"' not in page:
            return page
        names = re.findall(r'<input type="hidden" name="(\w+)"', page)
        data = {n: _hidden(page, n) for n in names if n != "query"}
        answer = await visitor.post(
            "/console/runs/bulk/go", data=data, headers={"HX-Request": "true"}
        )
        assert answer.status_code == 200, answer.text
        page = answer.text
    raise AssertionError("it does not end")


async def test_a_look_changes_nothing_and_doing_it_does_all(
    visitor: httpx.AsyncClient, play: Play, db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk, "BATCH", 3)
    for i in range(7):
        await play.start(f"n {i}")
    page = await send(visitor, "/console/runs/bulk", action="cancel", which="all", query="agent=a")
    assert "Cancel 7 runs?" in page.text
    assert await sql(db, "SELECT 1 FROM runs WHERE status = 'cancelled'") == []
    end = await _all_the_way(visitor, page.text)
    assert "7 done, 0 not. Finished." in end
    assert len(await sql(db, "SELECT 1 FROM runs WHERE status = 'cancelled'")) == 7


async def test_a_retry_is_made_once(visitor: httpx.AsyncClient, play: Play, db: Database):
    ids = [encode("run", await play.start()) for _ in range(3)]
    await sql(
        db, "UPDATE runs SET status = 'failed', stop_reason = 'error', finished_at = now(), "
        "error = '{\"code\": \"BOOM\"}'",
    )  # fmt: skip
    fields = {"action": "retry", "run": ids, "which": "chosen"}
    page = (await send(visitor, "/console/runs/bulk", **fields)).text
    assert "BOOM" in page
    assert "3 done, 0 not" in await _all_the_way(visitor, page)
    # Over again: it is not the session that is busy which keeps a second retry away.
    await sql(
        db, "UPDATE runs SET status = 'cancelled', stop_reason = 'cancelled', finished_at = now() "
        "WHERE forked_from IS NOT NULL",
    )  # fmt: skip
    again = await _all_the_way(visitor, page)
    assert "0 done, 3 not" in again
    assert "skipped" in again
    assert len(await sql(db, "SELECT 1 FROM runs WHERE forked_from IS NOT NULL")) == 3
    everything = (
        await send(visitor, "/console/runs/bulk", action="retry", which="all", query="")
    ).text
    assert "There is nothing to retry" in everything


async def test_what_it_does_not_apply_to_is_left_out(visitor: httpx.AsyncClient, play: Play):
    run = encode("run", await play.start())
    fields = {"action": "retry", "run": [run], "which": "chosen"}
    page = (await send(visitor, "/console/runs/bulk", **fields)).text
    assert "Left out" in page
    assert "There is nothing to retry" in page


async def test_nobody_does_things_to_the_runs_of_others(
    login_as: LogIn, play: Play, other_tenant: Tenant, db: Database
):
    run = encode("run", await play.start())
    stranger = await login_as(key=other_tenant.keys["admin"])
    answer = await send(stranger, "/console/runs/bulk/go", action="cancel", ids=run, total="1")
    assert "0 done, 1 not" in answer.text
    assert "no run" in answer.text
    strange = {"action": "cancel", "ids": "", "total": "²", "made": "²"}
    assert (await send(stranger, "/console/runs/bulk/go", **strange)).status_code == 200
    assert await sql(db, "SELECT 1 FROM runs WHERE status = 'cancelled'") == []
    viewer = await login_as("viewer")
    answer = await send(viewer, "/console/runs/bulk", action="cancel", which="all", query="")
    assert answer.status_code == 403
    odd = await send(stranger, "/console/runs/bulk", action="delete")
    assert odd.status_code == 422


async def test_children_are_left_to_the_retry_of_their_parent(
    visitor: httpx.AsyncClient, play: Play, db: Database
):
    parent, child = await play.start("whole"), await play.start("part of it")
    await sql(
        db, "UPDATE runs SET parent_run_id = :p, parent_step = 2, parent_idx = 0 WHERE id = :c",
        p=parent, c=child,
    )  # fmt: skip
    await sql(
        db, "UPDATE runs SET status = 'failed', stop_reason = 'error', finished_at = now(), "
        "error = '{}'",
    )  # fmt: skip
    page = await send(visitor, "/console/runs/bulk", action="retry", which="all", query="")
    assert encode("run", parent) in page.text
    assert encode("run", child) not in page.text
