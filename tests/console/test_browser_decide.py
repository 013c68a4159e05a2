"""People decide in a real browser what real processes then do: nothing is played here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.console.browser import CHROMIUM, console_stack, ended, start
from tests.e2e.stack import Stack
from tests.e2e.test_approvals import agent

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here: install Debian's package `chromium`"
    ),
]
SOON_MS = 60_000


@pytest.fixture(scope="module")
def platform() -> Iterator[tuple[Stack, httpx.Client]]:
    with console_stack() as (stack, client):
        stack.env["EFFECTS"] = str(stack.effects)
        stack.effects.touch()
        stack.add_worker("worker-t", "--tools", "tests.e2e.approval_tools", "-Q", "steps.pay")
        rules = "rules: [{name: risky, match: {risk_at_least: high}, then: ask}]"
        assert client.post("/v1/policies", json={"source": rules}).is_success
        made = agent()
        made["spec"]["queue"] = "steps.pay"
        assert client.post("/v1/agents", json=made).is_success
        yield stack, client


@pytest.fixture
def page(platform) -> Iterator[Any]:
    """Be logged in as an approver who did not start the runs."""
    stack, client = platform
    key = client.post("/v1/api-keys", json={"name": "p", "role": "admin"}).json()["secret"]
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(base_url=f"http://127.0.0.1:{stack.api_ports[0]}")
        context.set_default_timeout(SOON_MS)
        opened = context.new_page()
        told: list[str] = []
        opened.on("console", lambda m: told.append(m.text) if m.type == "error" else None)
        opened.on("pageerror", lambda error: told.append(str(error)))
        opened.goto("/console/approvals")
        opened.get_by_label("API key").fill(key)
        opened.get_by_role("button", name="Log in").click()
        opened.wait_for_url("**/console/approvals")
        yield opened
        browser.close()
    assert told == []


def _expect(locator: Any) -> Any:
    return playwright_api.expect(locator)


def test_what_a_person_decides_is_what_is_done(page, platform):
    stack, client = platform
    run_id = start(client, "a", "pay")
    assert ended(client, run_id)["status"] == "waiting_approval"
    page.goto("/console/approvals")
    rows = page.locator("#inbox tbody tr")
    _expect(rows).to_have_count(3)
    for to, button in (("carol", "edit"), ("bob", "Deny"), ("ann", "Approve as shown")):
        page.goto("/console/approvals")
        page.locator("#inbox tbody tr", has_text=to).get_by_role("link", name="Review pay").click()
        _expect(page.get_by_text("What will happen")).to_be_visible()
        if button == "edit":
            page.get_by_text("Approve with other arguments").first.click()
            page.locator("#arguments").fill('{"to": "carol", "amount": 30}')
            page.get_by_role("button", name="Approve with these").click()
        elif button == "Deny":
            page.locator("#why-no").fill("not bob")
            page.get_by_role("button", name="Deny").click()
        else:
            page.get_by_role("button", name=button).click()
        page.wait_for_url("**/console/approvals")
    assert ended(client, run_id)["status"] == "succeeded"
    done = sorted(stack.effects.read_text().splitlines())
    assert [re.sub(r" \d+\.\d+$", "", line) for line in done if line.startswith("pay")] == [
        "pay ann 1", "pay carol 30",
    ]  # fmt: skip


def converse(page):
    page.goto("/console/sessions")
    if not page.get_by_label("First message").is_visible():  # it is open while there are none
        page.get_by_text("Start a conversation").click()
    page.get_by_label("Agent").select_option("slow")
    page.get_by_label("First message").fill("Tell me words")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/console/sessions/sess_*")


def test_a_conversation_with_a_real_worker(page, platform):
    _, client = platform
    converse(page)
    writing = page.locator("[data-writing] [data-text]")
    _expect(writing).to_contain_text(re.compile(r"word\d+ word\d+"), timeout=SOON_MS)
    first = writing.inner_text()
    page.wait_for_function(
        "n => (document.querySelector('[data-text]')?.textContent ?? '').length > n", arg=len(first)
    )
    page.get_by_role("textbox", name="Message").fill("And more")
    page.get_by_role("button", name="Send").click()  # after this answer
    said = page.locator(".say.assistant:not(.writing)")
    _expect(said).to_have_count(2, timeout=SOON_MS)
    _expect(page.locator("[data-stream]")).to_have_count(0, timeout=SOON_MS)
    session = page.url.rsplit("/", 1)[1]
    found = client.get(f"/v1/sessions/{session}/runs").json()["data"]
    assert [run["status"] for run in found] == ["succeeded", "succeeded"]


def test_a_conversation_whose_stream_is_refused_goes_on(page, platform):
    refused = []

    def refuse(route):
        refused.append(route.request.url)
        if len(refused) > 1:
            route.continue_()
        else:
            route.fulfill(status=204)  # after this a browser does not ask again by itself

    page.route("**/stream?*", refuse)
    converse(page)
    said = page.locator(".say.assistant:not(.writing)")
    _expect(said).to_have_count(1, timeout=SOON_MS)
    _expect(page.locator("[data-stream]")).to_have_count(0, timeout=SOON_MS)
    assert len(refused) > 1, "it was asked for again"
