"""Flower behind the login: who gets in, what goes either way, and what is said when it is away."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from pydantic import SecretStr
from redis.asyncio import Redis

from harness_api.app import create_app
from harness_api.console.session import COOKIE
from harness_api.flower import MAX_FORM_BYTES, MAX_PAGE_BYTES, address
from harness_common.settings import FlowerSettings, Settings
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from tests.fakes.http_server import Page, serving
from tests.fakes.tenant import Tenant
from tests.flower.conftest import PASSWORD, FlowerProcess

pytestmark = pytest.mark.timeout(240)

HTML = {"Accept": "text/html,application/xhtml+xml"}
Browser = Callable[..., Awaitable[httpx.AsyncClient]]
MakeApp = Callable[[str | None], Awaitable[FastAPI]]


@pytest.fixture
async def make_door(config: Settings, db: Database, redis: Redis) -> AsyncIterator[MakeApp]:
    """Give an API that looks for Flower at an address."""
    async with AsyncExitStack() as stack:

        async def make(url: str | None) -> FastAPI:
            told = FlowerSettings(password=SecretStr(PASSWORD))
            made = create_app(config.model_copy(update={"flower_url": url, "flower": told}))
            await stack.enter_async_context(LifespanManager(made))
            return made

        yield make


def client_of(app: FastAPI, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(
        transport=transport, base_url="http://api.test:8700", headers=headers, timeout=30
    )


async def browser(app: FastAPI, key: str) -> httpx.AsyncClient:
    """Log in as a browser does."""
    client = client_of(app, **HTML, **{"Sec-Fetch-Site": "same-origin"})
    answer = await client.post("/console/login", data={"key": key})
    assert answer.status_code == 303
    return client


@pytest.fixture
async def operator(db: Database, tenant: Tenant) -> Tenant:
    """Make `tenant` the one that runs the platform."""
    async with db.transaction() as conn:
        await pg(conn).execute(
            "UPDATE tenants SET operator = true WHERE tenant_id = %s", (tenant.id,)
        )
    return tenant


async def test_who_gets_in(make_door: MakeApp, operator: Tenant, other_tenant: Tenant) -> None:
    with serving() as upstream:
        upstream.pages["/flower/"] = Page(b"pages", headers={"Content-Type": "text/html"})
        app = await make_door(upstream.url)
        bare = client_of(app)
        to_login = await bare.get("/flower/tasks?search=a%26b", headers=HTML)
        assert to_login.status_code == 303
        assert (
            to_login.headers["location"] == "/console/login?next=/flower/tasks%3Fsearch%3Da%2526b"
        )
        refused = await bare.get("/flower/")
        assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED")
        forged = client_of(app, **HTML)
        forged.cookies.set(COOKIE, "WyJhIiwiYiJd.forged")
        assert (await forged.get("/flower/")).status_code == 303
        for key in (operator.keys["viewer"], operator.keys["approver"], other_tenant.keys["admin"]):
            person = await browser(app, key)
            denied = await person.get("/flower/")
            assert denied.status_code == 403
            assert "platform:read" in denied.text
            by_key = await bare.get("/flower/", headers={"Authorization": f"Bearer {key}"})
            assert (by_key.status_code, by_key.json()["code"]) == (403, "DENIED")
        assert upstream.seen == [], "nobody of these reached Flower"
        admin = await browser(app, operator.keys["admin"])
        assert (await admin.get("/flower/")).text == "pages"
        assert (await admin.get("/flower")).headers["location"] == "/flower/"
        by_key = await bare.get("/flower/", headers=operator.headers("admin"))
        assert by_key.text == "pages"


async def test_what_goes_either_way(make_door: MakeApp, operator: Tenant) -> None:
    with serving() as upstream:
        upstream.pages["/flower/task/a%2Fb"] = Page(
            b"page",
            headers={
                "Content-Type": "text/html",
                "ETag": '"1"',
                "Set-Cookie": "_xsrf=1; Path=/",
                "Access-Control-Allow-Origin": "*",
                "Connection": "X-Hop",
                "X-Hop": "1",
                "Content-Security-Policy": "default-src *",
                "Cache-Control": "public, max-age=9",
            },
        )
        admin = await browser(await make_door(upstream.url), operator.keys["admin"])
        answer = await admin.get(
            "/flower/task/a%2Fb?x=1&y=%2F",
            headers={
                "X-Forwarded-For": "1.2.3.4",
                "Origin": "http://evil.test",
                "If-None-Match": "x",
            },
        )
        (seen,) = upstream.seen
        assert (seen.method, seen.target) == ("GET", "/flower/task/a%2Fb?x=1&y=%2F")
        sent = {name.lower(): value for name, value in seen.headers.items()}
        basic = b64encode(f"harness:{PASSWORD}".encode()).decode()
        assert sent.pop("authorization") == f"Basic {basic}"
        assert sent.pop("if-none-match") == "x"
        assert set(sent) <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert operator.keys["admin"] not in str(seen)
        assert (answer.text, answer.headers["etag"]) == ("page", '"1"')
        assert answer.headers["cache-control"] == "no-store"
        assert not {"set-cookie", "access-control-allow-origin", "x-hop"} & set(answer.headers)
        (csp,) = answer.headers.get_list("content-security-policy")
        assert "default-src 'none'" in csp
        assert "connect-src api.test:8700/flower/;" in csp
        assert "frame-ancestors 'none'" in csp


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/flower/api/worker/shutdown/x", 403),
        ("POST", "/flower/tasks", 403),
        ("DELETE", "/flower/tasks", 405),
        ("PUT", "/flower/tasks/datatable", 405),
        ("GET", "/flower/x/..%2f..%2fmetrics", 404),
    ],
)
async def test_what_never_reaches_it(
    make_door: MakeApp, operator: Tenant, method: str, path: str, status: int
) -> None:
    with serving() as upstream:
        client = client_of(await make_door(upstream.url), **operator.headers("admin"))
        assert (await client.request(method, path)).status_code == status
        assert upstream.seen == []


async def test_the_table_of_tasks_is_posted_to_within_a_bound(
    make_door: MakeApp, operator: Tenant
) -> None:
    with serving() as upstream:
        upstream.pages["/flower/tasks/datatable"] = Page(b"{}")
        admin = await browser(await make_door(upstream.url), operator.keys["admin"])
        answer = await admin.post("/flower/tasks/datatable", data={"draw": "1", "search": "ä&b"})
        assert answer.json() == {}
        (seen,) = upstream.seen
        assert (seen.method, seen.body) == ("POST", b"draw=1&search=%C3%A4%26b")
        large = await admin.post("/flower/tasks/datatable", data={"d": "x" * MAX_FORM_BYTES})
        assert large.status_code == 422
        assert len(upstream.seen) == 1


async def test_an_answer_that_is_too_large_is_not_passed_on(
    make_door: MakeApp, operator: Tenant
) -> None:
    with serving() as upstream:
        upstream.pages["/flower/"] = Page(b"x" * (MAX_PAGE_BYTES + 1))
        client = client_of(await make_door(upstream.url), **operator.headers("admin"))
        answer = await client.get("/flower/")
        assert (answer.status_code, answer.json()["code"]) == (502, "FLOWER_AWAY")


async def test_what_is_said_when_it_is_away(make_door: MakeApp, operator: Tenant) -> None:
    key = operator.keys["admin"]
    with serving() as upstream:
        upstream.pages["/flower/"] = Page(status=401)
        other = await (await browser(await make_door(upstream.url), key)).get("/flower/")
        assert other.status_code == 502
        assert "HARNESS_FLOWER__PASSWORD" in other.text
    away = await (await browser(await make_door("http://127.0.0.1:1"), key)).get("/flower/")
    assert away.status_code == 502
    assert away.headers["content-type"].startswith("text/html")
    assert "does not answer on http://127.0.0.1:1" in away.text
    assert "nonce-" in away.headers["content-security-policy"]
    none = await (await browser(await make_door(None), key)).get("/flower/")
    assert "Start it with `harness flower`" in none.text
    json = client_of(await make_door(None), **operator.headers("admin"))
    assert (await json.get("/flower/")).json()["code"] == "FLOWER_AWAY"


@pytest.mark.parametrize(
    "text", ["127.0.0.1:5555", "ftp://x", "http://", "http://u:p@x:1", "http://x/other", ""]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit, match="HARNESS_FLOWER_URL"):
        address(text)


@pytest.mark.parametrize("text", ["http://flower:5555", "http://flower:5555/flower/"])
def test_an_address_may_name_the_pages(text: str) -> None:
    assert str(address(text)) == "http://flower:5555"


async def test_the_pages_of_flower_keep_to_their_policy(
    make_door: MakeApp, operator: Tenant, flower: FlowerProcess
) -> None:
    admin = await browser(await make_door(flower.url), operator.keys["admin"])
    for path in ("/flower/", "/flower/tasks", "/flower/broker"):
        page = await admin.get(path)
        assert page.status_code == 200
        csp = page.headers["content-security-policy"]
        for script in re.findall(r"<script[^>]*>(.*?)</script>", page.text, re.DOTALL):
            if script.strip():
                digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
                assert f"'sha256-{digest}'" in csp, f"{path}: {script!r}"
        for target in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
            outside = target.startswith("https://")  # links, which nothing loads
            assert outside or target.startswith("/flower/"), target
        assert not re.search(r'\son\w+="', page.text), "no inline handlers"
    script = await admin.get("/flower/static/js/flower.js")
    assert script.headers["content-type"] == "text/javascript"
    assert "no-store" not in script.headers.get("cache-control", "")
    rows = await admin.post(
        "/flower/tasks/datatable",
        data={
            "draw": "1", "start": "0", "length": "5", "order[0][column]": "0",
            "columns[0][data]": "received", "order[0][dir]": "desc",
        },
    )  # fmt: skip
    assert "recordsTotal" in rows.json()
