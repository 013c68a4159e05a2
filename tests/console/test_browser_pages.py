"""The pages beside runs in a real Chromium: people decide, resolve and talk; axe looks at each.

The API is served by this process; the worker is played, its deltas go through the real Valkey.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from redis.asyncio import Redis

from harness_api.app import stop_streams
from harness_common.coord.live import LiveStream
from harness_common.core.ids import decode
from harness_common.settings import Settings
from tests.console.conftest import only
from tests.console.world import World
from tests.fakes.tenant import Tenant
from tests.store.play import Play, say

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parent / "vendor/axe.min.js"
SHOTS = os.environ.get("HARNESS_TEST_SHOTS")
"""A folder for pictures of every page."""
DESKTOP: Any = {"width": 1280, "height": 860}
PHONE: Any = {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
    pytest.mark.timeout(180),
]


@dataclass
class Seat:
    """A person before a browser."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)
    """What the browser complained about."""

    async def open(self, path: str) -> None:
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == 200, path

    async def shoot(self, name: str) -> None:
        if SHOTS:
            await self.page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)

    async def check(self, where: str) -> None:
        """Let axe look at the page; nothing serious may be wrong, nothing may stick out."""
        result = await self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
            ".filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 160)).join(' | '))"
        )
        assert result == [], f"{where}: {result}"
        wide = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{where} is {wide} px too wide"


@pytest.fixture
async def url(app: FastAPI) -> AsyncIterator[str]:
    """Serve `app` on a port of this machine."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no signal for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    stop_streams(app)
    server.should_exit = True
    await serving


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        await found.close()


async def sit_down(
    browser: Browser, url: str, key: str, size: Any = None, scheme: Any = "light"
) -> tuple[Seat, BrowserContext]:
    """Log in."""
    context = await browser.new_context(
        viewport=size or DESKTOP, color_scheme=scheme, reduced_motion="reduce", bypass_csp=False
    )
    # Not into the page, whose policy forbids it: into the browser, before every page.
    await context.add_init_script(path=AXE)
    page = await context.new_page()
    seat = Seat(page, url)
    page.on("console", lambda m: seat.wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: seat.wrong.append(str(e)))
    await page.goto(f"{url}/console/login")
    await page.fill("#key", key)
    await page.click("text=Log in")
    await page.wait_for_url(f"{url}/console")
    return seat, context


@pytest.fixture
async def seat(browser: Browser, url: str, tenant: Tenant) -> AsyncIterator[Seat]:
    """Be logged in as an admin, with nothing for the browser to complain about at the end."""
    found, context = await sit_down(browser, url, tenant.keys["admin"])
    yield found
    await context.close()
    assert found.wrong == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("desktop", DESKTOP, "light"), ("phone", PHONE, "light"), ("dark", DESKTOP, "dark")],
)
async def test_every_page_is_good_to_look_at(
    browser: Browser, url: str, tenant: Tenant, world: World, name: str, size: Any, scheme: Any
):
    seat, context = await sit_down(browser, url, tenant.keys["admin"], size, scheme)
    for path in world.pages():
        await seat.open(path)
        words = path.removeprefix("/console/").split("/")
        short = "-".join(w.split("?")[0].split("_")[0] for w in words)
        await seat.shoot(f"{short}{'-q' if '?' in path else ''}-{name}")
        await seat.check(f"{path} ({name})")
    await context.close()
    assert seat.wrong == []


@only("asked")
async def test_a_call_is_approved_and_another_denied(seat: Seat, world: World):
    page, path = seat.page, f"/console/approvals/{world.approval['id']}"
    await seat.open("/console/approvals")
    await page.click("text=Review")
    await page.wait_for_url(f"**{path}")
    await expect(page.get_by_text("The model had read content from outside")).to_be_visible()
    await page.click("text=Deny >> nth=-1")  # without a reason the browser itself refuses
    await expect(page).to_have_url(f"{seat.url}{path}")
    await page.get_by_text("Approve with other arguments").first.click()
    await page.fill("#arguments", "{ no json")
    await page.click("text=Approve with these")
    await expect(page.get_by_role("alert")).to_contain_text("no JSON")
    assert await page.input_value("#arguments") == "{ no json"
    (said,) = seat.wrong  # Chromium itself says so of each answer that is no success
    assert "422" in said
    seat.wrong.clear()
    await page.fill("#why-yes", "checked")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console/approvals")
    await expect(page.get_by_text("Approved: pay")).to_be_visible()
    await expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    one = await world.call("GET", f"/approvals/{world.approval['id']}")
    assert (one["status"], one["reason"]) == ("approved", "checked")


@only("unknown")
async def test_an_unknown_effect_is_seen_and_resolved(seat: Seat, world: World):
    page = seat.page
    await seat.open("/console")
    await page.click("nav.side >> text=Unknown effects")
    await page.click("text=Resolve >> nth=0")
    await expect(page.get_by_text("the process is gone").first).to_be_visible()
    await page.check("input[value=succeeded]")
    await page.fill("#reason", "the bank shows it")
    await page.fill("#result", "paid")
    await page.get_by_role("button", name="Resolve").click()
    await page.wait_for_url("**/console/effects")
    await expect(page.get_by_text("No outcome is unknown")).to_be_visible()
    one = world.effect
    call = await world.call("GET", f"/runs/{one['run_id']}/calls/{one['call']}")
    assert (call["status"], call["result"]) == ("succeeded", "paid")


@only("work")
async def test_a_conversation_is_seen_as_it_is_written(
    seat: Seat, world: World, play: Play, redis: Redis, config: Settings
):
    page = seat.page
    await seat.open(f"/console/sessions/{world.session}")
    await page.fill("#text", "and more?")
    await page.keyboard.press("Control+Enter")
    writing = page.locator("[data-writing] [data-text]")
    await expect(page.locator("[data-now]")).to_have_text("Working …")
    (run, _) = (await world.call("GET", f"/sessions/{world.session}/runs"))["data"]
    run_id = decode("run", run["id"])
    live = LiveStream(redis, config.redis.prefix)
    owned = await play.claim(run_id)
    told = ""
    for at, piece in enumerate(("It \U0001f600 ", "is ", "<b>nine</b>")):
        told += piece
        for _ in range(50):  # until the page listens; a piece that comes twice is shown once
            live.delta(run_id, 1, piece, len(told) - len(piece))
            await live.flush()
            if await writing.text_content() == told:
                break
            await page.wait_for_timeout(100)
        await expect(writing).to_have_text(told.strip())
        if at == 1:
            await seat.shoot("session-live-desktop")
    assert await page.locator(".writing b").count() == 0
    await play.settle(owned, say(told))
    turn = page.locator(f"#turn-{run['id']}")
    await expect(turn.get_by_text("It \U0001f600 is <b>nine</b>")).to_be_visible()
    await expect(turn.get_by_text("succeeded")).to_be_visible()
    await expect(page.locator("[data-stream]")).to_have_count(0)


@pytest.mark.nightly
@only()
async def test_a_secret_is_shown_once_and_the_list_is_still_there(seat: Seat, world: World):
    page = seat.page
    await seat.open("/console/keys")
    await page.click("text=Make a key")
    await page.fill("#name", "ann")
    await page.get_by_role("button", name="Make", exact=True).click()
    await expect(page.locator("#made pre")).to_contain_text("hk_")
    await seat.shoot("keys-made-desktop")
    made = await page.locator("#made pre").inner_text()
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Rotate viewer").click()
    await expect(page.locator("#made pre")).not_to_have_text(made)
    await expect(page.locator("#made pre")).to_contain_text("hk_")
    await page.reload()
    await expect(page.locator("#made pre")).to_have_count(0)
    await expect(page.get_by_text("ann", exact=True)).to_be_visible()


@only("failing")
async def test_a_list_keeps_up_and_its_buttons_say_what_went_wrong(seat: Seat, world: World):
    page = seat.page
    await seat.open("/console/tools")
    close = page.get_by_role("button", name="Close the breaker of flaky")
    await expect(close).to_be_visible()
    await page.route("**/console/tools", lambda route: route.abort())  # it does not keep up now
    await world.call("POST", "/tools/breakers/flaky/reset")
    await close.click()
    await expect(page.get_by_role("alert")).to_contain_text("no faults of a tool")
    await page.unroute("**/console/tools")
    await page.evaluate("document.querySelector('[data-poll]').dispatchEvent(new Event('poll'))")
    await expect(close).to_have_count(0)
    assert all("404" in told or "ERR_FAILED" in told for told in seat.wrong)
    seat.wrong.clear()


@pytest.mark.nightly
@only("asked")
async def test_it_goes_by_keyboard(seat: Seat, world: World):
    page = seat.page
    await seat.open("/console")
    await page.keyboard.press("g")
    await page.keyboard.press("a")
    await page.wait_for_url("**/console/approvals")
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent.trim()") == "Review":
            break
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console/approvals/appr_*")
    await page.focus("#why-no")
    await page.keyboard.type("no")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console/approvals")
    assert (await world.call("GET", f"/approvals/{world.approval['id']}"))["status"] == "denied"
