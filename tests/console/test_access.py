"""Every page has a rule, its headers, and shows what others wrote as text."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from harness_api.app import create_app
from harness_api.console import vendor
from harness_api.console.access import check_rules
from harness_api.console.pages import PAGES
from harness_api.console.render import ENV, clean
from harness_common.core.ids import encode
from harness_common.settings import Settings
from tests.console.conftest import SAME, LogIn, send
from tests.fakes.tenant import Tenant
from tests.store.play import Play

ROOT = Path(__file__).parents[2]
NASTY = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>"
    "[a](javascript:alert(3)) \"' onmouseover=alert(4) \x1b[31mred\x1b[0m \u202egnp.exe"
)


def test_a_page_without_a_rule_stops_the_app(config: Settings):
    app = create_app(config)
    bare = APIRouter(prefix="/console")
    bare.get("/bare")(lambda: None)
    app.router.routes.extend(bare.routes)
    with pytest.raises(RuntimeError, match="/console/bare"):
        check_rules(app)


def _routes() -> list[tuple[str, str]]:
    return sorted(
        (method, route.path)
        for router in PAGES
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
        if "login" not in route.path and "static" not in route.path and "logout" not in route.path
    )


def _sample(name: str) -> str:
    """Make up what may stand in a path: an id of its kind, or a word."""
    kind = name.removesuffix("_id")
    if kind == name:
        return "1"
    return encode("api_key" if kind == "key" else kind, UUID(int=7))


async def test_nobody_gets_in_without_a_session(app: FastAPI):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api", headers=SAME
    ) as client:
        for method, template in _routes():
            path = re.sub(r"\{(\w+)(:path)?\}", lambda found: _sample(found[1]), template)
            answer = await client.request(method, path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/console/login"), path


async def test_a_viewer_reads_and_changes_nothing(login_as: LogIn):
    viewer = await login_as("viewer")
    assert (await viewer.get("/console/runs")).status_code == 200
    for action in ("cancel", "pause", "resume", "answer", "steer", "fork", "retry"):
        answer = await send(viewer, f"/console/runs/run_{'0' * 32}/{action}")
        assert answer.status_code == 403
        assert "runs:write" in answer.text


async def test_every_page_has_its_headers(visitor: httpx.AsyncClient):
    for path in ("/console", "/console/runs", "/console/none"):
        await _has_headers(visitor, path)
    visitor.cookies.clear()
    await _has_headers(visitor, "/console/login")


async def _has_headers(visitor: httpx.AsyncClient, path: str) -> None:
    answer = await visitor.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy)
    assert nonce is not None
    tags = re.findall(r"<(?:script|link rel=\"stylesheet\")[^>]*>", answer.text)
    assert tags
    assert all(f'nonce="{nonce[1]}"' in tag for tag in tags)
    assert not re.search(r"<[^>]+\s(?:style|on\w+)=", answer.text)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    again = await visitor.get(path)
    assert nonce[1] not in again.text


async def test_what_others_wrote_is_text(visitor: httpx.AsyncClient, play: Play):
    await play.start(NASTY)
    page = (await visitor.get("/console/runs")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert not re.search(r"href=\"\s*javascript:", page)
    assert not re.search(r"<[^>]+ onmouseover", page)


def test_every_template_compiles():
    for name in ENV.list_templates():
        ENV.get_template(name)


def test_texts_are_cleaned_of_what_deceives():
    assert clean("a\x1b[31mb\x1b]0;x\x07c\td\ne\x00") == "ab0;xc\td\ne"
    assert clean("x\u202ey") == "x\ufffdy"
    assert clean("pay\U000e0062\U000e006f\u200b bob\ufeff") == "pay\ufffd\ufffd\ufffd bob\ufffd"


async def test_forms_are_taken_by_the_console_alone(visitor: httpx.AsyncClient, tenant: Tenant):
    answer = await visitor.post("/v1/runs", data={"agent": "a"}, headers=tenant.headers("admin"))
    assert answer.status_code == 415


async def test_a_session_is_no_key_for_the_api(visitor: httpx.AsyncClient):
    assert (await visitor.get("/v1/runs")).status_code == 401


async def test_static_files_are_kept_and_only_these_are_served(visitor: httpx.AsyncClient):
    page = (await visitor.get("/console")).text
    for path in set(re.findall(r'"(/console/static/[^"]+)"', page)):
        answer = await visitor.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await visitor.get("/console/static/console.css")).headers["cache-control"] == "no-cache"
    for name in ("../session.py", "%2e%2e/session.py", "vendor/htmx.org.LICENSE"):
        assert (await visitor.get(f"/console/static/{name}")).status_code == 404


async def test_a_path_that_leads_nowhere_is_a_page(visitor: httpx.AsyncClient):
    answer = await visitor.get("/console/nothing/here")
    assert answer.status_code == 404
    assert "Not found" in answer.text


def test_what_is_vendored_is_what_was_pinned():
    rows = json.loads((ROOT / "harness_api/console/vendor.json").read_text())
    for row in rows:
        digest = hashlib.sha256((ROOT / row["file"]).read_bytes()).hexdigest()
        assert digest == row["sha256"], row["file"]
    assert {row["from"] for row in rows} == {f"{p.package}@{p.version}" for p in vendor.PINNED}
    committed = {
        str(p.relative_to(ROOT))
        for folder in (vendor.PAGES, vendor.TESTS)
        for p in (ROOT / folder).iterdir()
    }
    assert committed == {row["file"] for row in rows}
