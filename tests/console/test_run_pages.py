"""The pages of runs, with runs that have gone some way."""

from __future__ import annotations

import re
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest

from harness_common.core.ids import encode
from harness_common.store.db import Database
from tests.console.conftest import LogIn, send
from tests.console.test_access import NASTY
from tests.fakes.tenant import Tenant
from tests.store.play import Play, ran, say, sql

TABS = ("", "/messages", "/events", "/checkpoints", "/lineage")


@pytest.fixture
async def run_id(play: Play) -> UUID:
    """Give a run that has asked a tool and answered."""
    run_id = await play.start(NASTY, tags={"team": "sales"})
    await play.step(run_id, say(NASTY, tools=["look"]))
    await play.step(run_id, ran(NASTY))
    await play.step(run_id, say("the end"))
    return run_id


def _path(run_id: UUID) -> str:
    return f"/console/runs/{encode('run', run_id)}"


async def test_every_part_of_a_run_shows_others_words_as_text(
    visitor: httpx.AsyncClient, run_id: UUID
):
    for tab in (*TABS, "/steps/1", "/steps/2"):
        answer = await visitor.get(_path(run_id) + tab)
        assert answer.status_code == 200, tab
        for bad in ("<script>alert", "<img src=x", "\x1b", "\u202e"):
            assert bad not in answer.text, tab
        assert not re.search(r"<[^>]+\s(?:style|on\w+)=", answer.text), tab
        assert not re.search(r"href=\"\s*javascript:", answer.text), tab


async def test_the_timeline_has_steps_calls_and_the_output(
    visitor: httpx.AsyncClient, run_id: UUID
):
    page = (await visitor.get(_path(run_id))).text
    for step in (1, 2, 3):
        assert f'id="step-{step}"' in page
        assert f'{_path(run_id)}/steps/{step}"' in page
    assert 'id="call-2.0"' in page
    assert "the end" in page
    assert "the model gave its final answer" in page
    assert "under-way" not in page


async def test_each_step_has_a_page_of_its_own(visitor: httpx.AsyncClient, run_id: UUID):
    page = (await visitor.get(f"{_path(run_id)}/steps/2")).text
    assert "look" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    missing = await visitor.get(f"{_path(run_id)}/steps/9")
    assert missing.status_code == 404
    assert "no committed step 9" in missing.text


async def test_two_checkpoints_are_compared(visitor: httpx.AsyncClient, run_id: UUID):
    page = (await visitor.get(f"{_path(run_id)}/checkpoints?a=0&b=1")).text
    assert "next_kind" in page
    assert "&#34;tools&#34;" in page
    assert "turn" in page
    same = (await visitor.get(f"{_path(run_id)}/checkpoints?a=1&b=1")).text
    assert "There is no difference." in same
    assert (await visitor.get(f"{_path(run_id)}/checkpoints?a=1&b=99")).status_code == 404


async def test_a_long_run_is_read_in_pages(visitor: httpx.AsyncClient, play: Play):
    run_id = await play.start("long")
    for _ in range(30):
        await play.step(run_id, say("more", tools=["look"]))
        await play.step(run_id, ran("x"))
    newest = (await visitor.get(_path(run_id))).text
    assert 'id="step-60"' in newest
    assert 'id="step-10"' not in newest
    first = (await visitor.get(f"{_path(run_id)}?after=0")).text
    assert 'id="step-1"' in first
    assert 'id="step-51"' not in first
    assert "?after=50" in first


async def test_a_run_of_another_tenant_is_not_there(
    login_as: LogIn, other_tenant: Tenant, run_id: UUID
):
    stranger = await login_as(key=other_tenant.keys["admin"])
    for path in (*TABS, "/steps/1", "/live"):
        assert (await stranger.get(_path(run_id) + path)).status_code == 404, path
    for action in ("cancel", "fork", "retry"):
        assert (await send(stranger, f"{_path(run_id)}/{action}")).status_code == 404, action
    assert encode("run", run_id)[-6:] not in (await stranger.get("/console/runs")).text


async def test_people_stop_rest_and_wake_a_run(visitor: httpx.AsyncClient, play: Play):
    run_id = await play.start()
    answer = await send(visitor, f"{_path(run_id)}/pause")
    assert answer.headers["location"] == _path(run_id)
    assert (await play.read(run_id)).state.pause_requested or (
        await play.read(run_id)
    ).state.status == "paused"
    assert "Resume" in (await visitor.get(_path(run_id))).text
    await send(visitor, f"{_path(run_id)}/resume")
    assert (await play.read(run_id)).state.status != "paused"
    await send(visitor, f"{_path(run_id)}/cancel", reason="enough")
    page = await visitor.get(_path(run_id))
    assert "Cancelled." in page.text  # the notice, once
    assert (await play.read(run_id)).state.status == "cancelled"
    assert "Cancelled." not in (await visitor.get(_path(run_id))).text
    again = await send(visitor, f"{_path(run_id)}/pause")
    assert again.status_code == 409


async def test_a_run_is_forked_from_a_checkpoint(
    visitor: httpx.AsyncClient, run_id: UUID, db: Database
):
    answer = await send(visitor, f"{_path(run_id)}/fork", step="1", input="", model="")
    assert answer.status_code == 303
    page = (await visitor.get(answer.headers["location"])).text
    assert f'{_path(run_id)}"' in page
    rows = await sql(db, "SELECT forked_step FROM runs WHERE forked_from = :r", r=run_id)
    assert rows == [{"forked_step": 1}]
    wrong = await send(visitor, f"{_path(run_id)}/fork", step="many")
    assert wrong.status_code == 422


async def test_an_empty_answer_or_message_is_refused_with_words(
    visitor: httpx.AsyncClient, play: Play
):
    run_id = await play.start()
    for action in ("steer", "answer"):
        answer = await send(visitor, f"{_path(run_id)}/{action}", text="")
        assert answer.status_code == 422
        assert "text" in answer.text


async def test_filters_are_those_of_the_api(visitor: httpx.AsyncClient, play: Play):
    one = encode("run", await play.start("alpha beta", tags={"team": "sales"}))
    two = encode("run", await play.start("gamma"))
    await send(visitor, f"/console/runs/{two}/cancel")

    async def found(query: str) -> set[str]:
        page = (await visitor.get(f"/console/runs?{query}")).text
        return set(re.findall(r'<tr id="(run_\w+)"', page))

    assert await found("") == {one, two}
    assert await found("status=cancelled&agent=&q=&tag=") == {two}
    assert await found("status=cancelled&status=running&status=queued") == {one, two}
    assert await found("tag=team=sales") == {one}
    assert await found("q=BETA") == {one}
    assert await found("q=" + quote("%")) == set()
    assert await found("agent=a&since=1h") == {one, two}
    assert await found("agent=none") == set()
    assert (await visitor.get("/console/runs?status=odd")).status_code == 422
    assert (await visitor.get("/console/runs?since=2y")).status_code == 422
    assert (await visitor.get(f"/console/runs?q={one}")).headers["location"].endswith(one)
    assert (await visitor.get(f"/console/find?q={one}")).headers["location"].endswith(one)


async def test_the_list_is_paged_by_key(visitor: httpx.AsyncClient, play: Play):
    made = {encode("run", await play.start(f"run {i}")) for i in range(55)}
    first = (await visitor.get("/console/runs?agent=a")).text
    seen = set(re.findall(r'<tr id="(run_\w+)"', first))
    assert len(seen) == 50
    link = re.search(r'rel="next" href="(\?[^"]+)"', first)
    assert link is not None
    assert "agent=a" in link[1]
    second = (await visitor.get("/console/runs" + link[1].replace("&amp;", "&"))).text
    assert seen | set(re.findall(r'<tr id="(run_\w+)"', second)) == made


async def test_a_part_is_answered_to_htmx(visitor: httpx.AsyncClient, run_id: UUID):
    for path in ("/console", "/console/runs", _path(run_id), _path(run_id) + "/events"):
        part = (await visitor.get(path, headers={"HX-Request": "true"})).text
        assert "<html" not in part, path
        assert part.strip(), path
