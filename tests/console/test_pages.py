"""The pages beside runs: empty, full, with texts of others, for another tenant."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest
import typer.main

from harness_api.cli.main import app as cli
from tests.console.conftest import LogIn
from tests.console.world import World

TEMPLATES = Path(__file__).parents[2] / "harness_api/console/templates"
LISTS = [
    "sessions", "approvals", "approvals?show=all", "effects", "agents", "tools", "skills",
    "memories", "schedules", "webhooks", "workers", "throttles", "tenants", "keys", "audit",
]  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
async def test_a_page_with_nothing_says_what_to_do_next(login_as: LogIn, db, tenant, path: str):
    async with db.connection() as conn:
        await conn.execute("DELETE FROM agents")
    page = await (await login_as("viewer" if path not in {"keys", "audit"} else "admin")).get(
        f"/console/{path}"
    )
    assert page.status_code == 200, page.text
    assert "<h1>" in page.text
    if path not in {"tenants", "keys", "audit"}:  # of these there is always something
        assert 'class="empty"' in page.text
        assert 'class="code command"' in page.text


def test_every_command_that_a_page_names_is_one():
    group = typer.main.get_command(cli)
    named = set()
    for path in TEMPLATES.glob("*.html"):
        for text in re.findall(r"[\"'>](harness [a-z][^<\n]*)", path.read_text()):
            named.add(re.split(r"[\"'<] *(?:~|\)|,|$)", text)[0])
    assert len(named) > 10
    for text in sorted(named):
        words = shlex.split(text.replace("'", "").replace('"', ""))[1:]
        command = group
        while hasattr(command, "commands"):
            assert words, text
            assert words[0] in command.commands, f"{text}: {words[0]}"
            command = command.commands[words.pop(0)]
        options = {option for param in command.params for option in param.opts}
        for word in words:
            if word.startswith("--"):
                assert word in options, f"{text}: {word}"


async def test_every_page_shows_what_there_is_and_others_texts_as_text(
    visitor: httpx.AsyncClient, world: World
):
    for path, wanted in world.pages().items():
        answer = await visitor.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        text = answer.text
        for one in wanted:
            assert one in text, f"{path} lacks {one!r}"
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert "\x1b" not in text, path
        assert "\u202e" not in text, path
        assert not re.search(r"<[^>]+\s(?:style|on[a-z]+)=[\"']", text), path
        assert not re.search(r"href=\"\s*javascript:", text), path


async def test_another_tenant_sees_nothing_of_it(login_as: LogIn, other_tenant, world: World):
    stranger = await login_as(key=other_tenant.keys["admin"])
    for path in (f"/console/{path}" for path in LISTS):
        text = (await stranger.get(path)).text
        shared = path.endswith("/throttles")  # whoever shares a provider is held back by it
        assert shared or "&lt;script&gt;" not in text, path
        for one in world.ids():
            assert one not in text, f"{path} shows {one}"
    for path in world.pages():
        if path.count("/") > 2 and "/workers/" not in path:
            answer = await stranger.get(path)
            assert answer.status_code == 404, f"{path}: {answer.status_code}"


async def test_a_list_is_paged_with_its_filters(visitor: httpx.AsyncClient, db, tenant):
    async with db.tenant_transaction(tenant.id) as conn:
        await conn.execute(
            "INSERT INTO audit (tenant_id, actor, action, target) "
            "SELECT %s, 'key_x', 'run.cancel', 'run_' || n FROM generate_series(1, 60) n",
            (tenant.id,),
        )
    page = (await visitor.get("/console/audit?action=run.cancel")).text
    assert page.count("<tr>") == 51
    (link,) = re.findall(r'rel="next" href="([^"]+)"', page)
    assert "action=run.cancel" in link
    rest = (await visitor.get(f"/console/audit{link.replace('&amp;', '&')}")).text
    assert rest.count("<tr>") == 11
    assert "First page" in rest
    wrong = await visitor.get("/console/audit?action=x")
    assert wrong.status_code == 422
    assert "action" in wrong.text
