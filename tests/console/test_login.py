"""Logging in, staying in, and being put out."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from harness_api.console.pages.login import TRIES, safe_next
from harness_api.console.session import COOKIE, Session, Sessions
from harness_common.store.db import Database
from tests.console.conftest import SAME, LogIn, send, token_of
from tests.fakes.tenant import Tenant
from tests.store.play import sql


@pytest.fixture
async def nobody(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api", headers=SAME
    )


async def test_a_key_opens_the_console_and_the_cookie_does_not_hold_it(
    nobody: httpx.AsyncClient, tenant: Tenant
):
    first = await nobody.get("/console")
    assert first.status_code == 303
    assert first.headers["location"] == "/console/login?next=/console"
    answer = await nobody.post("/console/login", data={"key": tenant.keys["viewer"]})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie  # plain http, as on a machine of one's own
    secret = tenant.keys["viewer"].split("_", 2)[2]
    assert secret not in cookie
    assert (await nobody.get("/console")).status_code == 200


async def test_over_https_the_cookie_is_secure(app: FastAPI, tenant: Tenant):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://api", headers=SAME
    ) as client:
        answer = await client.post("/console/login", data={"key": tenant.keys["viewer"]})
    assert "Secure" in answer.headers["set-cookie"]


async def test_the_login_is_in_the_audit_trail(visitor: httpx.AsyncClient, db: Database):
    rows = await sql(db, "SELECT action, detail FROM audit WHERE action = 'console.login'")
    assert rows == [{"action": "console.login", "detail": {"role": "admin"}}]


async def test_a_revoked_key_ends_the_session(
    visitor: httpx.AsyncClient, app: FastAPI, db: Database
):
    await sql(db, "UPDATE api_keys SET revoked_at = clock_timestamp()")
    app.state.services.keyring._known.clear()  # as after its few seconds
    assert (await visitor.get("/console")).status_code == 303


async def test_a_forged_or_old_cookie_is_none(
    app: FastAPI, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    sessions: Sessions = app.state.services.sessions
    public_id = tenant.rows["admin"]["public_id"]
    good = sessions._signer.dumps([public_id, "x"])
    assert sessions.read(good) == Session(public_id, "x")
    assert sessions.read(good[:-2] + ("AA" if good[-2:] != "AA" else "BB")) is None
    assert Sessions(b"another pepper", 60).read(good) is None
    assert sessions.read(sessions._signer.dumps("admin")) is None
    sessions.max_age_s = -1
    assert sessions.read(good) is None


async def test_logging_out_takes_the_cookie_back(visitor: httpx.AsyncClient):
    answer = await visitor.post("/console/logout")
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    assert (await visitor.get("/console")).status_code == 303


async def test_failed_logins_of_an_address_are_limited(
    nobody: httpx.AsyncClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(TRIES):
        answer = await nobody.post("/console/login", data={"key": "hk_no_such"})
        assert answer.status_code == 401
    answer = await nobody.post("/console/login", data={"key": tenant.keys["admin"]})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60
    monkeypatch.setattr(nobody._transport.app.state.console_tries, "_window_s", 0.0)  # type: ignore[attr-defined]
    answer = await nobody.post("/console/login", data={"key": tenant.keys["admin"]})
    assert answer.status_code == 303


def test_after_the_login_nobody_is_sent_elsewhere():
    for path in (
        "https://evil/",
        "//evil",
        "/console//evil",
        "/console/\\evil",
        "/v1/runs",
        "evil",
    ):
        assert safe_next(path) == "/console"


async def test_what_is_no_address_is_refused_and_fails_nothing(app: FastAPI, tenant: Tenant):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api"
    ) as client:
        assert (await client.get("/console/login", params={"next": "//["})).status_code == 200
        data = {"key": tenant.keys["admin"]}
        answer = await client.post("/console/login", data=data, headers={"Origin": "http://["})
        assert answer.status_code == 403
        form = {f"f{n}": "x" for n in range(2_001)}
        answer = await client.post("/console/login", data=form, headers=SAME)
        assert answer.status_code == 422


def test_after_the_login_people_come_back():
    assert safe_next("/console/runs?status=failed") == "/console/runs?status=failed"


async def test_a_page_of_another_site_cannot_log_in_or_change_anything(
    login_as: LogIn, nobody: httpx.AsyncClient, tenant: Tenant
):
    cross = {"Sec-Fetch-Site": "cross-site"}
    answer = await nobody.post("/console/login", data={"key": tenant.keys["admin"]}, headers=cross)
    assert answer.status_code == 403
    visitor = await login_as("admin")
    token = token_of((await visitor.get("/console")).text)
    answer = await visitor.post("/console/logout", data={"csrf": token}, headers=cross)
    assert answer.status_code == 403


async def test_an_old_browser_is_judged_by_its_origin(app: FastAPI, tenant: Tenant):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api"
    ) as client:
        for origin, status in (("http://evil", 403), ("http://api", 303), (None, 403)):
            headers = {"Origin": origin} if origin else {}
            data = {"key": tenant.keys["admin"]}
            answer = await client.post("/console/login", data=data, headers=headers)
            assert answer.status_code == status, origin


async def test_an_hx_request_without_a_session_is_led_to_the_login(nobody: httpx.AsyncClient):
    answer = await nobody.get("/console/runs", headers={"HX-Request": "true"})
    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/console/login?next=/console"
    answer = await nobody.get("/console/runs?status=failed")
    assert answer.headers["location"] == "/console/login?next=/console/runs%3Fstatus%3Dfailed"


async def test_forms_need_the_token_of_their_session(login_as: LogIn):
    one, two = await login_as("operator"), await login_as("operator")
    other = token_of((await two.get("/console")).text)
    path = "/console/runs/run_" + "0" * 32 + "/cancel"
    for token in ("", "f" * 64, other):
        answer = await one.post(path, data={"csrf": token})
        assert answer.status_code == 403
        assert "another session" in answer.text
    assert (await send(one, path)).status_code == 404  # let in; there is no such run
