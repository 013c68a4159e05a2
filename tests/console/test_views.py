"""Saved views of the list of runs."""

from __future__ import annotations

import re

from tests.console.conftest import LogIn, send


async def test_a_view_is_saved_found_again_and_deleted(login_as: LogIn):
    me, other = await login_as("operator"), await login_as("viewer")
    query = "status=failed&since=24h&cursor="
    answer = await send(me, "/console/runs/views", name="  Failed  today ", query=query)
    assert answer.headers["location"] == "/console/runs?status=failed&since=24h"
    mine = (await me.get("/console/runs")).text
    assert "Failed today" in mine
    assert "Failed today" not in (await other.get("/console/runs")).text

    await send(me, "/console/runs/views", name="Failed today", query=query, shared="1")
    theirs = (await other.get("/console/runs")).text
    assert theirs.count("Failed today") == 1  # a link, and nothing to delete it with
    view_id = re.search(r'name="id" value="(\w+)"', (await me.get("/console/runs")).text)
    assert view_id is not None
    not_mine = await send(other, "/console/runs/views/delete", id=view_id[1])
    assert not_mine.status_code == 404
    await send(me, "/console/runs/views/delete", id=view_id[1])
    await me.get("/console/runs")  # it says that it is deleted
    assert "Failed today" not in (await me.get("/console/runs")).text


async def test_a_view_holds_filters_that_hold(login_as: LogIn):
    me = await login_as("operator")
    for name, query in (("", "status=failed"), ("x" * 61, ""), ("odd", "status=odd")):
        answer = await send(me, "/console/runs/views", name=name, query=query)
        assert answer.status_code == 422, name
    answer = await send(me, "/console/runs/views/delete", id="none")
    assert answer.status_code == 404
