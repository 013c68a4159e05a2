"""The page /docs: all of the API on it, and nothing that another host has to send."""

from __future__ import annotations

import re

import httpx
from fastapi import FastAPI


async def test_the_page_shows_every_operation_and_loads_only_our_own_files(
    app: FastAPI, api: httpx.AsyncClient
) -> None:
    page = await api.get("/docs", headers={"Authorization": ""})
    assert page.status_code == 200
    ids = set(re.findall(r'id="([\w-]+)"', page.text))
    asked = {o["operationId"] for p in app.openapi()["paths"].values() for o in p.values()}
    assert asked <= ids
    assert {f"form-{name}" for name in app.openapi()["components"]["schemas"]} <= ids
    assert set(re.findall(r'href="#([^"]+)"', page.text)) <= ids, "links within the page"
    assert "runs:write" in page.text
    assert "<script" not in page.text
    assert "style=" not in page.text
    loaded = re.findall(r'<link[^>]+href="([^"]+)"', page.text)
    assert loaded
    for target in loaded:
        assert target.startswith("/console/static/")
        assert (await api.get(target)).status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_who_opens_the_bare_address_is_led_to_the_console(api: httpx.AsyncClient) -> None:
    answer = await api.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")


async def test_what_came_with_scripts_of_another_host_is_gone(api: httpx.AsyncClient) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert (await api.get(path)).status_code == 404
