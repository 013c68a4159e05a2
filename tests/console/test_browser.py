"""People at the console in a real browser: they log in, watch tokens come, stop, pause, fork and
retry; nothing is reported in the browser's console, and axe finds nothing serious.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.console.browser import AXE, CHROMIUM, console_stack, ended, start
from tests.e2e.stack import Stack

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here: install Debian's package `chromium`"
    ),
]
SOON_MS = 30_000


@pytest.fixture(scope="module")
def platform() -> Iterator[tuple[Stack, httpx.Client]]:
    with console_stack() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(platform, browser) -> Iterator[Any]:
    """Be logged in; whatever the browser reports fails the test."""
    stack, _ = platform
    context = browser.new_context(base_url=f"http://127.0.0.1:{stack.api_ports[0]}")
    context.set_default_timeout(SOON_MS)
    opened = context.new_page()
    told: list[str] = []
    opened.on("console", lambda m: told.append(m.text) if m.type in {"error", "warning"} else None)
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.goto("/console/runs")
    opened.get_by_label("API key").fill(stack.key)
    opened.get_by_role("button", name="Log in").click()
    opened.wait_for_url("**/console/runs")
    yield opened
    context.close()
    assert told == []


def _expect(locator: Any) -> Any:
    return playwright_api.expect(locator)


def _chip(page: Any) -> Any:
    return page.locator("h1 .chip")


def _serious(page: Any) -> list[str]:
    # By the debugger's protocol: the policy of the page lets no other script in.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]}"
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
    ]


def test_tokens_come_and_the_page_follows_to_the_end(page, platform):
    _, client = platform
    run_id = start(client, "slow", "Tell me words")
    page.goto(f"/console/runs/{run_id}")
    tokens = page.locator("#tokens")
    _expect(tokens).to_contain_text(re.compile(r"word\d+ word\d+"), timeout=SOON_MS)
    first = tokens.inner_text()
    page.wait_for_function(
        "n => (document.querySelector('#tokens')?.textContent ?? '').length > n", arg=len(first)
    )
    _expect(_chip(page)).to_have_text("succeeded", timeout=SOON_MS)
    _expect(page.locator("#step-1")).to_contain_text("word1")
    assert page.locator("#under-way").count() == 0


def test_a_run_is_cancelled_and_another_paused_and_resumed(page, platform):
    _, client = platform
    run_id = start(client, "slow", "Stop me")
    page.goto(f"/console/runs/{run_id}")
    _expect(_chip(page)).to_have_text("running", timeout=SOON_MS)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    _expect(_chip(page)).to_have_text("cancelled", timeout=SOON_MS)

    run_id = start(client, "slow", "Let me rest")
    page.goto(f"/console/runs/{run_id}")
    page.get_by_role("button", name="Pause").click()
    _expect(page.locator("#notices")).to_contain_text(re.compile("rest|Paused"))
    assert ended(client, run_id)["status"] in {"paused", "succeeded"}
    if client.get(f"/v1/runs/{run_id}").json()["status"] == "paused":
        page.get_by_role("button", name="Resume").click()
    _expect(_chip(page)).to_have_text("succeeded", timeout=SOON_MS)


def test_a_run_is_forked_from_a_checkpoint(page, platform):
    _, client = platform
    run_id = start(client, "demo", "Calculate")
    assert ended(client, run_id)["status"] == "succeeded"
    page.goto(f"/console/runs/{run_id}/checkpoints")
    page.get_by_role("button", name="Compare their state").click()
    _expect(page.get_by_role("heading", name="State after step 6")).to_be_visible()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="2", exact=True))
    row.get_by_role("button", name="Fork here").click()
    _expect(page.locator("#notices")).to_contain_text(f"Forked from {run_id}")
    _expect(page.locator(".facts")).to_contain_text("step 2")
    _expect(_chip(page)).to_have_text("succeeded", timeout=SOON_MS)
    page.goto(f"/console/runs/{run_id}/steps/2")
    _expect(page.get_by_role("heading", name="Step 2")).to_be_visible()


def test_many_runs_are_retried_with_a_look_first(page, platform):
    _, client = platform
    for i in range(25):
        start(client, "broken", f"fail {i}", tags={"batch": "browser"})
    page.goto("/console/runs?status=failed&tag=batch=browser")
    for _ in range(60):
        if page.locator("table.runs tbody tr").count() == 25:
            break
        page.wait_for_timeout(1000)
    page.get_by_label("Which runs").select_option("all")
    page.get_by_role("button", name="Retry…").click()
    _expect(page.get_by_role("heading", name="Retry 25 runs?")).to_be_visible()
    page.get_by_role("button", name="Retry 25 runs").click()
    _expect(page.locator("#progress")).to_contain_text("25 done, 0 not. Finished.", timeout=SOON_MS)
    retried = client.get("/v1/runs", params={"agent": "broken", "retried": True, "limit": 200})
    assert len(retried.json()["data"]) == 25


def test_axe_finds_nothing_serious(page, platform):
    _, client = platform
    run_id = start(client, "demo", "Calculate")
    ended(client, run_id)
    paths = ["", "/runs", f"/runs/{run_id}", f"/runs/{run_id}/steps/1", "/runs?status=failed"]
    paths += [f"/runs/{run_id}/{tab}" for tab in ("messages", "events", "checkpoints", "lineage")]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path in paths:
            page.goto(f"/console{path}")
            assert _serious(page) == [], f"{scheme} {path}"


def test_keys_find_go_and_skip(page, platform):
    page.goto("/console")
    page.keyboard.press("/")
    _expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("#find").evaluate("field => field.blur()")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/console/runs")
    page.keyboard.press("Tab")
    _expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()


def test_what_is_typed_and_opened_outlives_a_live_refresh(page, platform):
    _, client = platform
    run_id = start(client, "slow", "Keep what I type")
    page.goto(f"/console/runs/{run_id}")
    page.get_by_text("Say something").click()
    page.get_by_label("The next model step sees it").fill("half a sent")
    page.locator("h1").click()
    _expect(_chip(page)).to_have_text(re.compile("running|succeeded"), timeout=SOON_MS)
    page.evaluate("document.body.dispatchEvent(new Event('live'))")
    page.wait_for_timeout(1000)
    field = page.get_by_label("The next model step sees it")
    if field.count():
        _expect(field).to_have_value("half a sent")
    ended(client, run_id)
